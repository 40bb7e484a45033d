#include "trainer/kl_reward.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/trainer/scored_groups.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::ScoredGroup;

// One prompt of two tokens, completions of two and one tokens, rewards 1 and 0.
struct Case {
  std::vector<ScoredGroup> groups = {GroupWithPrompt(0, {3, 4})};
  ExperienceBatch batch;
  at::Tensor proximal, reference;

  Case() {
    AddCompletion(groups[0], {5, 6}, 0)->set_reward(1);
    AddCompletion(groups[0], {7}, 0)->set_reward(0);
    batch = PackBatch(groups, {.vocab_size = 10}).value();
    proximal = at::full({5}, -1.0f);
    reference = at::full({5}, -1.0f);
  }
  double Penalise(KlEstimator estimator) {
    const PolicyLossOptions loss = {
        .kl_coefficient = 0.5, .kl_place = KlPlace::kReward, .kl_estimator = estimator};
    return PenaliseRewards({&proximal, 1}, {&reference, 1}, loss,
                           {.kind = AdvantageKind::kMeanOnly}, batch);
  }
  const std::vector<float>& advantages() const { return batch.microbatches[0].advantages; }
};

TEST(KlRewardTest, TakesTheSumOverTheTokensOffTheRewardAndCentresAnew) {
  Case c;
  c.reference[2] = -1.4f;  // d = 0.4
  c.reference[3] = -0.8f;  // d = -0.2
  c.reference[4] = -2.0f;  // d = 1
  c.reference[0] = 9;      // of the prompt: not counted
  // Penalties 0.5 x 0.2 and 0.5 x 1; rewards 0.9 and -0.5, mean 0.2.
  EXPECT_NEAR(c.Penalise(KlEstimator::kK1), 0.3, 1e-6);
  EXPECT_NEAR(c.advantages()[2], 0.7, 1e-6);
  EXPECT_NEAR(c.advantages()[3], 0.7, 1e-6);
  EXPECT_NEAR(c.advantages()[4], -0.7, 1e-6);
  EXPECT_EQ(c.advantages()[0], 0);
}

TEST(KlRewardTest, UsesTheEstimatorThatIsNamed) {
  Case c;
  c.reference[4] = -2.0f;
  EXPECT_NEAR(c.Penalise(KlEstimator::kK2), 0.5 * 0.5 / 2, 1e-6);
  EXPECT_NEAR(c.Penalise(KlEstimator::kK3), 0.5 * 0.36787944 / 2, 1e-6);
}

TEST(KlRewardTest, ATokenThatIsNotFiniteCostsNothing) {
  Case c;
  c.proximal[3] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(c.Penalise(KlEstimator::kK1), 0);
  EXPECT_NEAR(c.advantages()[2], 0.5, 1e-6);
}

TEST(KlRewardTest, AMaskedMemberIsNeitherChargedNorCounted) {
  Case c;
  AddCompletion(c.groups[0], {8}, 0)->set_masked(true);
  c.groups[0].mutable_completions(2)->set_reward(100);
  c.batch = PackBatch(c.groups, {.vocab_size = 10}).value();
  EXPECT_EQ(c.Penalise(KlEstimator::kK1), 0);
  EXPECT_NEAR(c.advantages()[2], 0.5, 1e-6);
  EXPECT_NEAR(c.advantages()[4], -0.5, 1e-6);
}

}  // namespace
}  // namespace tandem::trainer
