#include "common/drift/delivery_trend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace tandem::offpolicy {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int kCompletions = 10;

// Pushes 0 .. n - 1 at distances 0, 1, ... with alternating push distances. Ten completions of two
// tokens each have squares of `square(push)` per token, times (1 + spread (s - 4.5)) for completion
// s.
std::vector<ProbedPush> Pushes(int n, const std::function<double(const ProbedPush&)>& square,
                               double spread = 0) {
  std::vector<ProbedPush> pushes;
  for (int v = 0; v < n; ++v) {
    ProbedPush push = {.version = v,
                       .distance = static_cast<double>(v),
                       .push_distance = v == 0 ? 0 : 1 + 0.5 * std::sin(static_cast<double>(v))};
    for (int s = 0; s < kCompletions; ++s) {
      push.squares.push_back(2 * square(push) * (1 + spread * (s - 4.5)));
    }
    pushes.push_back(push);
  }
  return pushes;
}
const std::vector<double> kTokens(kCompletions, 2.0);

TEST(DeliveryTrend, WhatGrowsWithTheDistanceFromTheStartIsUndelivered) {
  const auto pushes = Pushes(
      8, [](const ProbedPush& p) { return 0.01 + 0.002 * p.distance * p.distance; }, 0.1);
  const DeliveryTrend trend = FitDeliveryTrend(pushes, kTokens);
  EXPECT_EQ(trend.num_pushes, 8);
  EXPECT_NEAR(trend.undelivered.value, 0.002 * 49, 1e-12);
  EXPECT_NEAR(trend.late.value, 0, 1e-12);
  EXPECT_NEAR(trend.floor, 0.01, 1e-12);
  EXPECT_NEAR(trend.square.value, 0.01 + 0.002 * 49, 1e-12);
  EXPECT_GT(trend.undelivered.low, 0.05);
  EXPECT_LT(trend.undelivered.high, 0.2);
}

TEST(DeliveryTrend, WhatGoesWithTheLastPushIsLate) {
  const auto pushes =
      Pushes(8, [](const ProbedPush& p) { return 0.01 + 0.3 * p.push_distance * p.push_distance; });
  const DeliveryTrend trend = FitDeliveryTrend(pushes, kTokens);
  EXPECT_NEAR(trend.undelivered.value, 0, 1e-12);
  EXPECT_NEAR(trend.late.value, 0.3 * std::pow(pushes.back().push_distance, 2), 1e-12);
}

TEST(DeliveryTrend, NoiseThatDoesNotGrowIsNeither) {
  // Completions differ, and each varies by itself.
  std::vector<ProbedPush> pushes = Pushes(12, [](const ProbedPush&) { return 0.01; });
  for (ProbedPush& push : pushes) {
    for (int s = 0; s < kCompletions; ++s) {
      push.squares[static_cast<size_t>(s)] *=
          1 + 0.5 * std::cos(static_cast<double>(3 * push.version + 5 * s));
    }
  }
  const DeliveryTrend trend = FitDeliveryTrend(pushes, kTokens);
  EXPECT_LT(trend.undelivered.low, 0);
  EXPECT_GT(trend.undelivered.high, 0);
}

TEST(DeliveryTrend, FourPushesSayNothingAndFiveDo) {
  const auto grows = [](const ProbedPush& p) { return p.distance * p.distance; };
  EXPECT_TRUE(std::isnan(FitDeliveryTrend(Pushes(4, grows), kTokens).undelivered.value));
  EXPECT_NEAR(FitDeliveryTrend(Pushes(5, grows), kTokens).undelivered.value, 16, 1e-9);
}

TEST(DeliveryTrend, DistancesThatCannotBeToldApartGiveNoNumber) {
  auto pushes = Pushes(8, [](const ProbedPush& p) { return p.distance * p.distance; });
  for (ProbedPush& push : pushes) push.push_distance = 0.1 * push.distance;
  EXPECT_TRUE(std::isnan(FitDeliveryTrend(pushes, kTokens).undelivered.value));
  for (ProbedPush& push : pushes) push.distance = 2;  // a learning rate of 0
  EXPECT_TRUE(std::isnan(FitDeliveryTrend(pushes, kTokens).undelivered.value));
}

TEST(DeliveryTrend, APushOfUnknownDistanceIsLeftOut) {
  auto pushes = Pushes(7, [](const ProbedPush& p) { return 0.5 + p.distance * p.distance; });
  pushes[3].push_distance = kNaN;
  for (double& square : pushes[3].squares) square = 1000;
  const DeliveryTrend trend = FitDeliveryTrend(pushes, kTokens);
  EXPECT_EQ(trend.num_pushes, 6);
  EXPECT_NEAR(trend.undelivered.value, 36, 1e-9);
}

TEST(DeliveryTrend, PushesOfOneSizeArePartOfTheNoise) {
  auto pushes = Pushes(6, [](const ProbedPush& p) { return 0.5 + p.distance * p.distance; });
  for (ProbedPush& push : pushes) push.push_distance = 1;
  const DeliveryTrend trend = FitDeliveryTrend(pushes, kTokens);
  EXPECT_NEAR(trend.undelivered.value, 25, 1e-9);
  EXPECT_TRUE(std::isnan(trend.late.value));
}

}  // namespace
}  // namespace tandem::offpolicy
