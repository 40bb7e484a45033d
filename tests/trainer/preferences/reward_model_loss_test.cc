#include "trainer/preferences/reward_model_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/preferences/central_difference.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::CentralDifference;
using ::tandem::testing::IsOk;

const std::vector<double> kNone;

RewardModelLoss RewardLoss(const std::vector<double>& rewards, const std::vector<double>& margins,
                           const RewardModelLossOptions& options) {
  return ComputeRewardModelLoss({{&rewards[0], 1}, {&rewards[1], 1}, margins}, options);
}

TEST(RewardModelLoss, IsTheNegativeLogProbabilityOfTheLabel) {
  const RewardModelLoss loss = RewardLoss({3, 2}, kNone, {});
  EXPECT_NEAR(loss.value[0], 0.3132616875, 1e-9);  // -log sigmoid(1)
  EXPECT_NEAR(loss.chosen_slope[0], -0.2689414214, 1e-9);
  EXPECT_NEAR(loss.rejected_slope[0], 0.2689414214, 1e-9);
}

TEST(RewardModelLoss, WantsADifferenceOverTheMargin) {
  EXPECT_NEAR(RewardLoss({3, 2}, {1}, {}).value[0], std::log(2.0), 1e-12);
}

TEST(RewardModelLoss, SmoothsLabels) {
  // -log sigmoid(-1) = 1 - log sigmoid(1).
  EXPECT_NEAR(RewardLoss({3, 2}, kNone, {.label_smoothing = 0.1}).value[0], 0.4132616875, 1e-9);
}

TEST(RewardModelLoss, CentresTheRewardsOfAPair) {
  const RewardModelLossOptions options{.center_rewards_coefficient = 0.01};
  const RewardModelLoss loss = RewardLoss({3, 2}, kNone, options);
  EXPECT_NEAR(loss.value[0], 0.3132616875 + 0.25, 1e-9);
  EXPECT_NEAR(loss.chosen_slope[0], -0.2689414214 + 0.1, 1e-9);
  EXPECT_NEAR(loss.rejected_slope[0], 0.2689414214 + 0.1, 1e-9);
}

TEST(RewardModelLoss, HasTheSlopesOfItsValue) {
  const RewardModelLossOptions options{.label_smoothing = 0.1, .center_rewards_coefficient = 0.02};
  const auto value = [&](const std::vector<double>& x) {
    return RewardLoss(x, {0.5}, options).value[0];
  };
  for (const std::vector<double>& at : {std::vector<double>{3, 2}, {-1, 4}, {0.2, 0.2}}) {
    const RewardModelLoss loss = RewardLoss(at, {0.5}, options);
    EXPECT_NEAR(loss.chosen_slope[0], CentralDifference(value, at, 0), 1e-8);
    EXPECT_NEAR(loss.rejected_slope[0], CentralDifference(value, at, 1), 1e-8);
  }
}

TEST(RewardModelLoss, DoesNotOverflowAtADifferenceOfAHundred) {
  EXPECT_NEAR(RewardLoss({-100, 0}, kNone, {}).value[0], 100, 1e-9);
  EXPECT_NEAR(RewardLoss({-100, 0}, kNone, {}).chosen_slope[0], -1, 1e-12);
  EXPECT_NEAR(RewardLoss({1000, 0}, kNone, {}).value[0], 0, 1e-12);
}

TEST(RewardModelLossOptions, AreReadByName) {
  RewardModelLossOptions options;
  OptionBinder binder;
  BindOptions(binder, options);
  ASSERT_THAT(binder.LoadString("{label_smoothing: 0.2, center_rewards_coefficient: 0.01}", "test"),
              IsOk());
  EXPECT_EQ(options.label_smoothing, 0.2);
  EXPECT_EQ(options.center_rewards_coefficient, 0.01);
}

}  // namespace
}  // namespace tandem::trainer
