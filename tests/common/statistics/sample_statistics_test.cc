#include "common/statistics/sample_statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem::offpolicy {
namespace {

TEST(SampleStatisticsTest, TheSlopeIsThatOfMostTokensWhateverAFewSay) {
  std::vector<double> direction, residual;
  for (int t = 0; t < 100; ++t) {
    direction.push_back(std::sin(t));
    residual.push_back(0.3 * std::sin(t));
  }
  EXPECT_NEAR(FitSlope(direction, residual), 0.3, 1e-12);
  for (int t = 0; t < 10; ++t) residual[static_cast<size_t>(7 * t)] = 5;
  residual[3] = std::nan("");
  EXPECT_NEAR(FitSlope(direction, residual), 0.3, 1e-6);
  EXPECT_EQ(FitSlope({0, 0}, {1, 2}), 0);
}

TEST(SampleStatisticsTest, AlignmentIsTheCosineOfTwoDirections) {
  EXPECT_NEAR(Alignment({1, 0}, {1, 1}), std::sqrt(0.5), 1e-12);
  EXPECT_NEAR(Alignment({1, 2, std::nan("")}, {-2, -4, 1}), -1, 1e-12);
  EXPECT_EQ(Alignment({0, 0}, {1, 1}), 0);
}

}  // namespace
}  // namespace tandem::offpolicy
