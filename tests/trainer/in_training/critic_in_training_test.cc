// A critic through whole train steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/weights/digest.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/train_steps.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::ExpectSameGradients;
using ::tandem::testing::FailsWith;
using ::tandem::testing::Floats;
using ::tandem::testing::GradientOptions;
using ::tandem::testing::Gradients;
using ::tandem::testing::Groups;
using ::tandem::testing::IsOk;
using ::tandem::testing::ScoredGroup;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

AdvantageOptions Gae() { return {.kind = AdvantageKind::kGae, .value = {.lambda = 1}}; }

std::unique_ptr<TrainStep> MakeCriticStep(const TrainStepOptions& options,
                                          const AdvantageOptions& advantage = Gae()) {
  TrainStepSetup setup{.config = ToyConfig(), .advantage = advantage};
  setup.weights = ToyWeights(setup.config);
  return TrainStep::Create(setup, options).value();
}

// Rewards 1 and 0 by turns.
std::vector<ScoredGroup> RewardedGroups() {
  std::vector<ScoredGroup> groups = Groups();
  for (ScoredGroup& group : groups) {
    for (int i = 0; i < group.completions_size(); ++i) {
      group.mutable_completions(i)->set_reward(i % 2);
      group.mutable_completions(i)->set_advantage(static_cast<float>(i % 2));
    }
  }
  return groups;
}

TrainStepOptions CriticOptionsOf(CriticBackbone backbone) {
  TrainStepOptions options = GradientOptions();
  options.critic.backbone = backbone;
  options.critic.optimizer = {.learning_rate = 1e-2, .max_grad_norm = 0};
  options.critic.value_clip = 0;
  return options;
}

// A head of zeros says 0 everywhere: with gamma and lambda 1 the advantages are the rewards.
TEST(CriticInTraining, ThatKnowsNothingLeavesTheRewardsAsAdvantages) {
  const auto with = MakeCriticStep(CriticOptionsOf(CriticBackbone::kOwn));
  const auto without = MakeCriticStep(GradientOptions(), {.kind = AdvantageKind::kNone});
  const auto report = with->Run(RewardedGroups());
  ASSERT_THAT(report, IsOk());
  ASSERT_THAT(without->Run(RewardedGroups()), IsOk());
  ExpectSameGradients(*without, *with);
  ASSERT_TRUE(report->critic.has_value());
  EXPECT_EQ(report->critic->value_mean, 0);
  EXPECT_EQ(report->critic->num_updates, 1);
  EXPECT_EQ(report->critic->explained_variance, 0);
}

TEST(CriticInTraining, LearnsWhatTheRewardsAre) {
  TrainStepOptions options = CriticOptionsOf(CriticBackbone::kOwn);
  options.optimizer.learning_rate = 0;
  const auto step = MakeCriticStep(options);
  double first = 0, last = 0;
  StepReport report;
  for (int i = 0; i < 30; ++i) {
    report = step->Run(RewardedGroups()).value();
    last = report.critic->loss_sum / static_cast<double>(report.critic->num_tokens);
    if (i == 0) first = last;
  }
  // The state before the first token is the same for right and wrong completions of a prompt: about
  // a fifth of the variance cannot be explained.
  EXPECT_LT(last, 0.1 * first);
  EXPECT_GT(report.critic->explained_variance, 0.75);
  EXPECT_NEAR(report.critic->value_mean, report.critic->target_mean, 0.1);
  // What is left is the first token's -1/2 or 1/2, here as the mean over 1, 4, 7 and 10 tokens:
  // -0.5, 0.125, -0.0714 and 0.05, of variance 0.0585. (The last token alone would say 0.047.)
  EXPECT_NEAR(report.advantage_var, 0.0585, 0.005);
}

TEST(CriticInTraining, WarmsUpWhileThePolicyStays) {
  TrainStepOptions options = CriticOptionsOf(CriticBackbone::kOwn);
  options.critic.warmup_steps = 2;
  const auto step = MakeCriticStep(options);
  for (int i = 0; i < 3; ++i) {
    const auto report = step->Run(RewardedGroups());
    ASSERT_THAT(report, IsOk());
    EXPECT_EQ(report->critic->warms_up, i < 2);
    EXPECT_EQ(report->loss.num_updates, i < 2 ? 0 : 1);
    EXPECT_EQ(report->critic->num_updates, 1);
    EXPECT_EQ(report->skip_reason, "");
    const auto numbers = NamedNumbers(*report);
    const bool has_entropy = std::ranges::any_of(
        numbers, [](const auto& number) { return number.first == "loss/entropy"; });
    EXPECT_EQ(has_entropy, i == 2) << "a 0 would raise the alert of a collapsed entropy";
    EXPECT_GT(report->correction.num_kept, 0) << "drift is measured all the same";
    const double moved = step->DistanceFrom(ToyWeights(ToyConfig())).value();
    EXPECT_EQ(moved > 0, i == 2) << moved;
  }
}

TEST(CriticInTraining, OnThePolicysHiddenStatesChangesThePolicyThroughTheValueLossAlone) {
  TrainStepOptions options = CriticOptionsOf(CriticBackbone::kShared);
  std::vector<ScoredGroup> groups = RewardedGroups();
  const auto step = MakeCriticStep(options);
  StepReport report;
  for (int i = 0; i < 40; ++i) report = step->Run(groups).value();
  EXPECT_GT(report.critic->explained_variance, 0.5);
  EXPECT_EQ(report.critic->num_updates, 1);
  // With all advantages 0 and a coefficient of 0 the policy does not move; with one it does.
  for (const double coefficient : {0.0, 1.0}) {
    options.critic.loss_coefficient = coefficient;
    const auto still = MakeCriticStep(options);
    for (ScoredGroup& group : groups) {
      for (auto& member : *group.mutable_completions()) member.set_reward(0);
    }
    ASSERT_THAT(still->Run(groups), IsOk()) << "zeros of a zero head: nothing to learn";
    EXPECT_EQ(still->DistanceFrom(ToyWeights(ToyConfig())).value(), 0);
  }
}

// Two steps, against one, a save, and one in another object.
void ExpectResumes(CriticBackbone backbone) {
  TrainStepOptions options = CriticOptionsOf(backbone);
  options.loss.objective.kind = offpolicy::ObjectiveKind::kPenalty;
  options.num_epochs = 2;
  if (backbone == CriticBackbone::kOwn) options.critic.warmup_steps = 1;
  const auto whole = MakeCriticStep(options), before = MakeCriticStep(options),
             after = MakeCriticStep(options);
  ASSERT_THAT(whole->Run(RewardedGroups()), IsOk());
  ASSERT_THAT(before->Run(RewardedGroups()), IsOk());
  ASSERT_THAT(after->Restore(before->Masters(), before->OptimizerState(), before->num_updates(),
                             before->numbers()),
              IsOk());
  EXPECT_EQ(after->numbers(), before->numbers());
  const auto first = whole->Run(RewardedGroups()), second = after->Run(RewardedGroups());
  ASSERT_THAT(second, IsOk());
  EXPECT_EQ(first->advantages, second->advantages);
  EXPECT_EQ(first->critic->loss_sum, second->critic->loss_sum);
  EXPECT_EQ(first->penalty_coefficient, second->penalty_coefficient);
  const auto state_of = [](const TrainStep& step) {
    std::vector<std::pair<std::string, std::vector<float>>> state;
    for (const auto& sources : {step.Masters(), step.OptimizerState()}) {
      for (const TensorSource& source : sources) {
        state.emplace_back(source.spec.name, Floats(source.read().value()));
      }
    }
    return state;
  };
  EXPECT_EQ(state_of(*whole), state_of(*after));
}

TEST(CriticInTraining, GoesOnFromWhatWasSavedBitForBit) {
  ExpectResumes(CriticBackbone::kOwn);
  ExpectResumes(CriticBackbone::kShared);
}

TEST(CriticInTraining, CannotGoOnFromARunWithoutOne) {
  const auto without = MakeCriticStep(GradientOptions(), {});
  const auto with = MakeCriticStep(CriticOptionsOf(CriticBackbone::kOwn));
  EXPECT_THAT(with->Restore(without->Masters(), without->OptimizerState(), 0, without->numbers()),
              FailsWith(absl::StatusCode::kInvalidArgument, "critic_updates is missing"));
}

// Twice as much KL in a step as the target allows ends it before the second update.
TEST(TargetKl, EndsTheUpdatesOfAStep) {
  TrainStepOptions options = GradientOptions();
  options.num_epochs = 4;
  options.optimizer.learning_rate = 3e-2;
  const auto free = MakeCriticStep(options, {})->Run(Groups());
  ASSERT_THAT(free, IsOk());
  EXPECT_EQ(free->loss.num_updates, 4);
  EXPECT_FALSE(free->loss.kl_stopped);
  EXPECT_GT(free->loss.proximal_kl_sum, 0);
  options.target_kl = 1e-4;
  const auto stopped = MakeCriticStep(options, {})->Run(Groups());
  ASSERT_THAT(stopped, IsOk());
  EXPECT_EQ(stopped->loss.num_updates, 1);
  EXPECT_TRUE(stopped->loss.kl_stopped);
}

// The first epoch starts from the proximal policy, so that the sum is that of the second.
TEST(TargetKl, BoundsTheMeanOverTheTokensOfAMinibatch) {
  TrainStepOptions options = GradientOptions();
  options.num_epochs = 2;
  options.optimizer.learning_rate = 3e-2;
  const auto free = MakeCriticStep(options, {})->Run(Groups());
  ASSERT_THAT(free, IsOk());
  ASSERT_EQ(free->loss.num_tokens, 2 * 44);
  const double mean = free->loss.proximal_kl_sum / 44;
  for (const double share : {0.5, 2.0}) {
    options.target_kl = share * mean;
    const auto report = MakeCriticStep(options, {})->Run(Groups());
    ASSERT_THAT(report, IsOk());
    EXPECT_EQ(report->loss.kl_stopped, share < 1) << share;
    EXPECT_EQ(report->loss.num_updates, share < 1 ? 1 : 2) << share;
  }
}

TEST(EntropyBonus, RaisesTheEntropyOfTheTrainedPolicy) {
  const auto entropy_after = [](double coefficient) {
    TrainStepOptions options = GradientOptions();
    options.optimizer.learning_rate = 1e-3;
    options.loss.entropy_coefficient = coefficient;
    const auto step = MakeCriticStep(options, {});
    std::vector<ScoredGroup> groups = Groups();
    for (ScoredGroup& group : groups) {
      for (auto& member : *group.mutable_completions()) member.set_advantage(0);
    }
    StepReport report;
    for (int i = 0; i < 5; ++i) report = step->Run(groups).value();
    return report.loss.entropy_sum;
  };
  EXPECT_GT(entropy_after(1), entropy_after(0) * 1.001);
}

}  // namespace
}  // namespace tandem::trainer
