// KL to the reference in the reward (loss.kl_place: reward), through whole train steps.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/train_steps.h"
#include "trainer/advantages/group_advantages.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::ExpectSameGradients;
using ::tandem::testing::GradientOptions;
using ::tandem::testing::Groups;
using ::tandem::testing::IsOk;
using ::tandem::testing::MakeStep;
using ::tandem::testing::ScoredGroup;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

// Rewards 1 for the first completion and 0 for the others, or 0 for all, with the advantages that
// ScoreGroup makes of them.
void SetRewards(ScoredGroup& group, bool first_is_right) {
  GroupRewards rewards;
  for (int i = 0; i < group.completions_size(); ++i) {
    rewards.rewards.push_back(first_is_right && i == 0 ? 1 : 0);
  }
  const std::vector<float> advantages = ComputeAdvantages(rewards, {});
  for (int i = 0; i < group.completions_size(); ++i) {
    group.mutable_completions(i)->set_reward(rewards.rewards[static_cast<size_t>(i)]);
    group.mutable_completions(i)->set_advantage(advantages[static_cast<size_t>(i)]);
  }
}

// Before the first update the policy is its reference: nothing is charged, and the advantages are
// those of the rewards. After it the group whose rewards are equal learns from the charge alone.
TEST(KlInTrainingTest, AKlInTheRewardIsTakenOffTheAdvantagesAndNotInTheLoss) {
  TrainStepOptions options = GradientOptions();
  options.optimizer = {.learning_rate = 3e-2, .max_grad_norm = 0};
  options.loss.kl_coefficient = 0.5;
  options.loss.kl_place = KlPlace::kReward;
  const auto step = MakeStep(options, 1, /*with_reference=*/true);
  std::vector<ScoredGroup> groups = Groups(1, 4);
  SetRewards(groups[0], true);
  const auto first = step->Run(groups);
  ASSERT_THAT(first, IsOk());
  EXPECT_NEAR(first->kl_penalty, 0, 1e-6);
  // (1 - 0.25) / 0.5 and (0 - 0.25) / 0.5: mean 0, mean square (2.25 + 3 x 0.25) / 4.
  EXPECT_NEAR(first->advantage_var, 0.75, 1e-3);
  EXPECT_NEAR(first->advantages[0][0][0], 1.5, 1e-3);
  SetRewards(groups[0], false);
  const auto second = step->Run(groups);
  EXPECT_EQ(second->loss.kl, 0);
  EXPECT_EQ(second->loss.total, second->loss.policy);
  // The reference has the weights of the first step. A cost is negative where the policy has come
  // to draw the tokens less often.
  std::vector<double> costs(4);
  double mean = 0;
  for (size_t i = 0; i < 4; ++i) {
    for (size_t t = 0; t < second->proximal_logprobs[0][i].size(); ++t) {
      costs[i] += 0.5 * (second->proximal_logprobs[0][i][t] - first->proximal_logprobs[0][i][t]);
    }
    mean += costs[i] / 4;
  }
  EXPECT_GT(std::abs(mean), 0.1);
  EXPECT_NEAR(second->kl_penalty, mean, 1e-4);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(second->advantages[0][i][0], mean - costs[i], 1e-4) << i;
  }
}

// The first step makes the same weights whatever the coefficient, for nothing is charged at the
// reference itself; then a tenth of the coefficient is a tenth of the charge.
TEST(KlInTrainingTest, WhereRewardsAreEqualAKlInTheRewardGrowsWithItsCoefficient) {
  std::vector<ScoredGroup> groups = Groups(1, 4), equal = groups;
  SetRewards(groups[0], true);
  SetRewards(equal[0], false);
  const auto charges = [&](double coefficient) {
    TrainStepOptions options = GradientOptions();
    options.optimizer.learning_rate = 3e-2;
    options.loss.kl_coefficient = coefficient;
    options.loss.kl_place = KlPlace::kReward;
    const auto step = MakeStep(options, 1, /*with_reference=*/true);
    EXPECT_THAT(step->Run(groups), IsOk());
    return step->Run(equal)->advantages[0];
  };
  const std::vector<std::vector<float>> whole = charges(0.5), tenth = charges(0.05);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(tenth[i][0], whole[i][0] / 10, 2e-4);
    EXPECT_GT(std::abs(whole[i][0]), 2e-3);
  }
}

// What a step says its advantages were makes the same gradient without the charge.
TEST(KlInTrainingTest, TheAdvantagesOfTheReportAreThoseAfterTheCharge) {
  TrainStepOptions options = GradientOptions();
  TrainStepOptions charged = options;
  charged.loss.kl_coefficient = 0.5;
  charged.loss.kl_place = KlPlace::kReward;
  charged.loss.kl_estimator = KlEstimator::kK1;
  TrainStepSetup setup{.config = ToyConfig()};
  setup.weights = ToyWeights(setup.config);
  setup.reference_weights = ToyWeights(setup.config, /*seed=*/2);
  const auto with_charge = TrainStep::Create(setup, charged).value();
  std::vector<ScoredGroup> groups = Groups();
  for (ScoredGroup& group : groups) SetRewards(group, true);
  const auto report = with_charge->Run(groups);
  ASSERT_THAT(report, IsOk());
  bool changed = false;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int i = 0; i < groups[g].completions_size(); ++i) {
      const std::vector<float>& advantages = report->advantages[g][static_cast<size_t>(i)];
      auto* const completion = groups[g].mutable_completions(i);
      ASSERT_EQ(static_cast<int>(advantages.size()), completion->completion().token_ids_size());
      for (const float advantage : advantages) ASSERT_EQ(advantage, advantages[0]);
      changed |= std::abs(advantages[0] - completion->advantage()) > 1e-2f;
      completion->set_advantage(advantages[0]);
    }
  }
  EXPECT_TRUE(changed);
  const auto without = MakeStep(options);
  ASSERT_THAT(without->Run(groups), IsOk());
  ExpectSameGradients(*with_charge, *without);
}

}  // namespace
}  // namespace tandem::trainer
