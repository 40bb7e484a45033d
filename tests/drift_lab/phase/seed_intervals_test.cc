#include "drift_lab/phase/seed_intervals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tandem::drift {
namespace {

// Mean 2, standard deviation 1: 2 +- 4.303 / sqrt(3).
TEST(ToyIntervalsTest, StudentIntervalOfThreeValues) {
  const std::vector<double> values = {1, 2, 3};
  const SeedInterval interval = StudentInterval(values);
  EXPECT_EQ(interval.mean, 2);
  EXPECT_NEAR(interval.low, 2 - 2.4843, 1e-3);
  EXPECT_NEAR(interval.high, 2 + 2.4843, 1e-3);
}

TEST(ToyIntervalsTest, OneValueHasNoInterval) {
  const SeedInterval interval = StudentInterval(std::vector<double>{3});
  EXPECT_EQ(interval.mean, 3);
  EXPECT_TRUE(std::isnan(interval.low));
}

// scipy.stats.t.ppf(.975, n)
TEST(ToyIntervalsTest, BootstrapTakesWholeSeeds) {
  std::vector<int> seen(3);
  const SeedInterval interval = BootstrapOverSeeds(2, [&](std::span<const int> times) {
    EXPECT_EQ(times[0] + times[1], 2);
    ++seen[static_cast<size_t>(times[1])];
    return times[1] / 2.0;
  });
  EXPECT_EQ(interval.mean, 0.5);
  EXPECT_EQ(interval.low, 0);
  EXPECT_EQ(interval.high, 1);
  EXPECT_NEAR(seen[1], 1001, 100);
}

}  // namespace
}  // namespace tandem::drift
