#include "common/statistics/cluster_bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "common/statistics/distributions.h"

namespace tandem::offpolicy {
namespace {

const Statistic kMean = [](std::span<const double> sums) { return sums[0] / sums[1]; };

// Clusters of 50 tokens whose values share the offset of their cluster.
ClusterSums SharedOffsets(int num_clusters, double offset_sd, std::mt19937& random) {
  std::normal_distribution<double> normal;
  ClusterSums clusters{.num_sums = 2};
  for (int c = 0; c < num_clusters; ++c) {
    double sum = 0;
    const double offset = offset_sd * normal(random);
    for (int t = 0; t < 50; ++t) sum += offset + normal(random);
    clusters.values.insert(clusters.values.end(), {sum, 50.0});
  }
  return clusters;
}

TEST(ClusterBootstrapTest, CoversTheTruthWhenTokensOfAClusterShareTheirError) {
  std::mt19937 random(11);
  int covered = 0, covered_as_if_independent = 0;
  constexpr int kExperiments = 600;
  for (int i = 0; i < kExperiments; ++i) {
    const ClusterSums clusters = SharedOffsets(12, 0.5, random);
    const Interval interval =
        BootstrapIntervals(clusters, std::vector{kMean}, {.replicates = 400, .seed = 1})[0];
    covered += !interval.Excludes(0);
    // Tokens have variance 1.25; 600 independent ones would give this standard error.
    covered_as_if_independent += std::abs(interval.value) < 1.96 * std::sqrt(1.25 / 600);
  }
  // 95 % of 600 is 570, with a standard deviation of 5.3.
  EXPECT_NEAR(covered, 570, 3 * 5.3 + 6);
  EXPECT_LT(covered_as_if_independent, 400);
}

// A known weakness: for 30 clusters of very unequal size and with skewed values, the interval
// covers 90 times in 100.
TEST(ClusterBootstrapTest, CoversAVerySkewedRatioNineTimesInTen) {
  std::mt19937 random(5);
  std::exponential_distribution<double> exponential;
  int covered = 0;
  for (int i = 0; i < 600; ++i) {
    ClusterSums clusters{.num_sums = 2};
    for (int c = 0; c < 30; ++c) {
      const double size = 1 + std::floor(9 * exponential(random));
      clusters.values.insert(clusters.values.end(), {size * exponential(random), size});
    }
    covered += !BootstrapIntervals(clusters, std::vector{kMean}, {.replicates = 400, .seed = 3})[0]
                    .Excludes(1);
  }
  EXPECT_GE(covered, 600 * 0.87);
  EXPECT_LE(covered, 600 * 0.96);
}

TEST(ClusterBootstrapTest, SameSeedSameBoundsAndOthersDiffer) {
  std::mt19937 random(2);
  const ClusterSums clusters = SharedOffsets(20, 0.1, random);
  const auto bounds = [&](uint64_t seed) {
    return BootstrapIntervals(clusters, std::vector{kMean}, {.replicates = 200, .seed = seed})[0];
  };
  EXPECT_EQ(bounds(1).low, bounds(1).low);
  EXPECT_NE(bounds(1).low, bounds(2).low);
  EXPECT_EQ(bounds(1).value, bounds(2).value);
}

TEST(ClusterBootstrapTest, SevenClustersHaveAValueAndNoBounds) {
  std::mt19937 random(2);
  const Interval interval =
      BootstrapIntervals(SharedOffsets(7, 0.1, random), std::vector{kMean})[0];
  EXPECT_TRUE(std::isfinite(interval.value));
  EXPECT_FALSE(interval.known());
  EXPECT_FALSE(interval.Excludes(1e9)) << "an unknown interval excludes nothing";
}

TEST(ClusterBootstrapTest, AStatisticThatIsNotAlwaysFiniteHasNoBounds) {
  ClusterSums clusters{.num_sums = 2};
  for (int c = 0; c < 10; ++c)
    clusters.values.insert(clusters.values.end(), {1.0, c < 1 ? 1.0 : 0.0});
  const Interval interval = BootstrapIntervals(clusters, std::vector{kMean})[0];
  EXPECT_EQ(interval.value, 10);
  EXPECT_FALSE(interval.known());
}

TEST(ClusterResamplerTest, EverySampleHasAsManyClustersAsThereAre) {
  ClusterResampler resampler(13, 9);
  std::vector<int> total(13);
  for (int r = 0; r < 2000; ++r) {
    int sum = 0, place = 0;
    for (const int32_t count : resampler.Next()) {
      sum += count;
      total[static_cast<size_t>(place++)] += count;
    }
    EXPECT_EQ(sum, 13);
  }
  for (const int count : total) EXPECT_NEAR(count, 2000, 4 * std::sqrt(2000.0));
}

TEST(DistributionsTest, AgreeWithTables) {
  EXPECT_NEAR(NormalQuantile(0.975), 1.959964, 1e-6);
  EXPECT_NEAR(NormalCdf(1.959964), 0.975, 1e-6);
  EXPECT_NEAR(StudentQuantile(0.975, 7), 2.364624, 1e-6);
  const ShareInterval share = BinomialInterval(190, 200, 0.95);
  EXPECT_NEAR(share.low, 0.9100, 5e-4);
  EXPECT_NEAR(share.high, 0.9758, 5e-4);
  const ShareInterval jeffreys = JeffreysInterval(190, 200, 0.95);
  EXPECT_NEAR(jeffreys.low, 0.9131, 5e-4);
  EXPECT_NEAR(jeffreys.high, 0.9740, 5e-4);
  EXPECT_EQ(JeffreysInterval(0, 20, 0.95).low, 0);
  EXPECT_EQ(BinomialInterval(0, 20, 0.95).low, 0);
  EXPECT_EQ(BinomialInterval(20, 20, 0.95).high, 1);
}

}  // namespace
}  // namespace tandem::offpolicy
