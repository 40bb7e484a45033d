// Steps with a critic on several ranks, which are threads of this process: what one rank makes.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "common/comm/collective.h"
#include "common/weights/digest.h"
#include "tests/support/rank_threads.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/train_steps.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::GradientOptions;
using ::tandem::testing::Groups;
using ::tandem::testing::IsOk;
using ::tandem::testing::OnRanks;
using ::tandem::testing::ScoredGroup;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

constexpr int kCriticSteps = 4;

struct CriticOutcome {
  std::vector<StepReport> reports;
  std::vector<std::pair<std::string, std::string>> digests;  // of masters and state, on rank 0
};

struct CriticCase {
  AdvantageKind kind;
  CriticBackbone backbone;
};

// Rewards 0 to 1; each second completion is truncated.
std::vector<ScoredGroup> SomeTruncated() {
  std::vector<ScoredGroup> groups = Groups(3, 4);
  for (ScoredGroup& group : groups) {
    for (int i = 0; i < group.completions_size(); ++i) {
      group.mutable_completions(i)->set_reward(i / 3.0);
      if (i % 2 == 0) continue;
      group.mutable_completions(i)->mutable_completion()->set_finish_reason(
          rollout::v1::FINISH_REASON_LENGTH);
    }
  }
  return groups;
}

TrainStepOptions OptionsOf(const CriticCase& of) {
  TrainStepOptions options = GradientOptions();
  options.optimizer = {.learning_rate = 1e-4, .max_grad_norm = 1};
  options.critic.backbone = of.backbone;
  options.critic.optimizer = {.learning_rate = 1e-3, .max_grad_norm = 1};
  options.microbatch_tokens = 30;
  options.num_minibatches = 2;
  options.num_epochs = 2;
  options.loss.kl_coefficient = 0.05;
  options.loss.kl_place = KlPlace::kTokenReward;
  options.loss.entropy_coefficient = 0.01;
  if (of.backbone == CriticBackbone::kOwn) options.critic.warmup_steps = 1;
  return options;
}

std::vector<CriticOutcome> TrainCritic(int num_ranks, bool sharded, const CriticCase& of) {
  TrainStep::UseThreads(1);
  std::vector<CriticOutcome> outcomes(static_cast<size_t>(num_ranks));
  for (const absl::Status& status : OnRanks(num_ranks, [&](comm::Collective& ranks) {
         TrainStepSetup setup{.config = ToyConfig(),
                              .advantage = {.kind = of.kind, .whiten = true},
                              .collectives = {&ranks},
                              .buckets = {.shard_parameters = sharded, .bucket_bytes = 4000}};
         setup.weights = setup.reference_weights = ToyWeights(setup.config);
         auto step = TrainStep::Create(setup, OptionsOf(of)).value();
         CriticOutcome& out = outcomes[static_cast<size_t>(ranks.rank())];
         for (int i = 0; i < kCriticSteps; ++i) {
           auto report = step->Run(SomeTruncated());
           if (!report.ok()) return report.status();
           out.reports.push_back(*std::move(report));
         }
         for (const auto& sources : {step->Masters(), step->OptimizerState()}) {
           for (const TensorSource& source : sources) {
             const auto tensor = source.read();
             if (!tensor.ok()) return tensor.status();
             if (ranks.rank() > 0) continue;
             out.digests.emplace_back(source.spec.name, Digest128(tensor->bytes));
           }
         }
         return absl::OkStatus();
       })) {
    EXPECT_THAT(status, IsOk());
  }
  return outcomes;
}

class CriticOnRanks : public ::testing::TestWithParam<CriticCase> {};

TEST_P(CriticOnRanks, MakesTheStepsOfOneRank) {
  const CriticOutcome alone = TrainCritic(1, false, GetParam())[0];
  ASSERT_EQ(alone.reports.size(), static_cast<size_t>(kCriticSteps));
  for (const bool sharded : {false, true}) {
    for (const CriticOutcome& rank : TrainCritic(2, sharded, GetParam())) {
      ASSERT_EQ(rank.reports.size(), alone.reports.size());
      for (size_t i = 0; i < alone.reports.size(); ++i) {
        const StepReport &a = alone.reports[i], &b = rank.reports[i];
        const std::string where = std::to_string(i) + (sharded ? " sharded" : " replicated");
        EXPECT_NEAR(a.critic->loss_sum, b.critic->loss_sum, 1e-4 * (1 + a.critic->loss_sum))
            << where;
        EXPECT_NEAR(a.critic->value_mean, b.critic->value_mean, 1e-4) << where;
        EXPECT_NEAR(a.critic->explained_variance, b.critic->explained_variance, 1e-3) << where;
        EXPECT_EQ(a.critic->num_tokens, b.critic->num_tokens) << where;
        EXPECT_NEAR(a.critic->grad_norm, b.critic->grad_norm, 1e-3 * a.critic->grad_norm) << where;
        EXPECT_NEAR(a.loss.total, b.loss.total, 1e-4) << where;
        EXPECT_NEAR(a.kl_penalty, b.kl_penalty, 1e-5) << where;
      }
    }
  }
}

TEST_P(CriticOnRanks, GivesAllRanksTheSameAdvantagesBitForBit) {
  const std::vector<CriticOutcome> ranks = TrainCritic(3, true, GetParam());
  for (const CriticOutcome& rank : ranks) {
    for (size_t i = 0; i < rank.reports.size(); ++i) {
      EXPECT_EQ(rank.reports[i].advantages, ranks[0].reports[i].advantages);
      EXPECT_EQ(rank.reports[i].critic->loss_sum, ranks[0].reports[i].critic->loss_sum);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CriticOnRanks,
                         ::testing::Values(CriticCase{AdvantageKind::kGae, CriticBackbone::kOwn},
                                           CriticCase{AdvantageKind::kGae, CriticBackbone::kShared},
                                           CriticCase{AdvantageKind::kVtrace,
                                                      CriticBackbone::kOwn}));

}  // namespace
}  // namespace tandem::trainer
