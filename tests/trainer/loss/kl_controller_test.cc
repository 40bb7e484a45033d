#include "trainer/loss/kl_controller.h"

#include <gtest/gtest.h>

#include <limits>

namespace tandem::trainer {
namespace {

TEST(ProportionalCoefficient, ChangesByTheClippedErrorTimesTheShareOfTheHorizon) {
  // kl / target - 1 = 0.1; 0.1 x 100 / 1000
  EXPECT_DOUBLE_EQ(ProportionalCoefficient(0.5, 6.6, 6, 100, 1000),
                   0.5 * (1 + 0.1 * 0.1 * (6.6 / 6 - 1) / 0.1));
  EXPECT_DOUBLE_EQ(ProportionalCoefficient(0.5, 60, 6, 100, 1000), 0.5 * 1.02);
  EXPECT_DOUBLE_EQ(ProportionalCoefficient(0.5, 0, 6, 100, 1000), 0.5 * 0.98);
  EXPECT_DOUBLE_EQ(ProportionalCoefficient(0.5, 6, 6, 100, 1000), 0.5);
  EXPECT_DOUBLE_EQ(
      ProportionalCoefficient(0.5, std::numeric_limits<double>::quiet_NaN(), 6, 100, 1000), 0.5);
}

TEST(DoublingCoefficient, DoublesAboveOneAndAHalfTimesTheTargetAndHalvesBelowItsTwoThirds) {
  EXPECT_DOUBLE_EQ(DoublingCoefficient(1, 0.016, 0.01), 2);
  EXPECT_DOUBLE_EQ(DoublingCoefficient(1, 0.014, 0.01), 1);
  EXPECT_DOUBLE_EQ(DoublingCoefficient(1, 0.007, 0.01), 1);
  EXPECT_DOUBLE_EQ(DoublingCoefficient(1, 0.006, 0.01), 0.5);
}

}  // namespace
}  // namespace tandem::trainer
