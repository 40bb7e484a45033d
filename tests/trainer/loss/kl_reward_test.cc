#include "trainer/loss/kl_reward.h"

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
  double Charge(double coefficient = 0.5, AdvantageKind kind = AdvantageKind::kMeanOnly) {
    return ChargeKl({&proximal, 1}, {&reference, 1}, coefficient, {.kind = kind}, batch);
  }
  const std::vector<float>& advantages() const { return batch.microbatches[0].advantages; }
};

TEST(KlRewardTest, TakesTheSumOverTheTokensOffAndCentresIt) {
  Case c;
  c.reference[2] = -1.4f;  // d = 0.4
  c.reference[3] = -0.8f;  // d = -0.2
  c.reference[4] = -2.0f;  // d = 1
  c.reference[0] = 9;      // of the prompt: not counted
  // Costs 0.5 x 0.2 and 0.5 x 1, mean 0.3; advantages 0.5 + 0.2 and -0.5 - 0.2.
  EXPECT_NEAR(c.Charge(), 0.3, 1e-6);
  EXPECT_NEAR(c.advantages()[2], 0.7, 1e-6);
  EXPECT_NEAR(c.advantages()[3], 0.7, 1e-6);
  EXPECT_NEAR(c.advantages()[4], -0.7, 1e-6);
  EXPECT_EQ(c.advantages()[0], 0);
}

TEST(KlRewardTest, WhereRewardsAreEqualTheChargeIsInProportionToItsCoefficient) {
  for (const AdvantageKind kind : {AdvantageKind::kGroupNorm, AdvantageKind::kMeanOnly}) {
    for (const double coefficient : {0.5, 0.05, 0.005}) {
      Case c;
      c.groups[0].mutable_completions(1)->set_reward(1);
      c.batch = PackBatch(c.groups, {.vocab_size = 10}).value();
      c.reference[4] = -2.0f;  // d = 1: costs 0 and the coefficient
      c.Charge(coefficient, kind);
      EXPECT_NEAR(c.advantages()[2], coefficient / 2, 1e-6);
      EXPECT_NEAR(c.advantages()[4], -coefficient / 2, 1e-6);
    }
  }
}

TEST(KlRewardTest, ATokenThatIsNotFiniteCostsNothing) {
  Case c;
  c.proximal[3] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(c.Charge(), 0);
  EXPECT_NEAR(c.advantages()[2], 0.5, 1e-6);
}

TEST(KlRewardTest, AMaskedMemberIsNeitherChargedNorCounted) {
  Case c;
  AddCompletion(c.groups[0], {8}, 0)->set_masked(true);
  c.groups[0].mutable_completions(2)->set_reward(100);
  c.batch = PackBatch(c.groups, {.vocab_size = 10}).value();
  EXPECT_EQ(c.Charge(), 0);
  EXPECT_NEAR(c.advantages()[2], 0.5, 1e-6);
  EXPECT_NEAR(c.advantages()[4], -0.5, 1e-6);
}

}  // namespace
}  // namespace tandem::trainer
