#include "common/offpolicy/drift_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace tandem::offpolicy {
namespace {

// Tokens with chosen behaviour and proximal probabilities; sequence 0 unless said otherwise.
struct Tokens {
  std::vector<float> behaviour, proximal, entropies, second_moments, advantages;
  std::vector<int32_t> sequence;
  std::vector<uint8_t> mask;

  void Add(double mu, double pi, float advantage = 1, int32_t of = 0, bool masked_in = true) {
    behaviour.push_back(static_cast<float>(std::log(mu)));
    proximal.push_back(static_cast<float>(std::log(pi)));
    entropies.push_back(1.0f);
    second_moments.push_back(1.5f);
    advantages.push_back(advantage);
    sequence.push_back(of);
    mask.push_back(masked_in);
  }
  DriftMetrics Compute() const {
    return ComputeDriftMetrics(
        {behaviour, proximal, entropies, second_moments, advantages, sequence, mask});
  }
};

// Two tokens with w = 2 and w = 1/2.
Tokens DoubleAndHalf() {
  Tokens tokens;
  tokens.Add(0.2, 0.4, 1, 0);
  tokens.Add(0.6, 0.3, -1, 1);
  return tokens;
}

const double kLog2 = std::log(2.0);

TEST(DriftMetricsTest, KlEstimatorsOfADoubledAndAHalvedProbability) {
  const DriftMetrics m = DoubleAndHalf().Compute();
  EXPECT_EQ(m.num_tokens, 2);
  EXPECT_NEAR(m.k1, 0, 1e-7);
  EXPECT_NEAR(m.k2, kLog2 * kLog2 / 2, 1e-6);
  EXPECT_NEAR(m.k3, 0.25, 1e-6);  // mean w = 1.25, mean delta = 0
  EXPECT_NEAR(m.reverse_kl, (2 * kLog2 - kLog2 / 2) / 2, 1e-6);
  EXPECT_NEAR(m.chi2, (4 + 0.25) / 2 - 1, 1e-6);
}

TEST(DriftMetricsTest, EffectiveSampleSizeAndMeanWeight) {
  const DriftMetrics m = DoubleAndHalf().Compute();
  EXPECT_NEAR(m.ess_fraction, 2.5 * 2.5 / (2 * 4.25), 1e-6);
  EXPECT_NEAR(m.mean_w, 1.25, 1e-6);
  EXPECT_NEAR(m.mean_w_stderr, 0.75, 1e-6);  // sqrt((2.125 - 1.5625) / 1)
}

TEST(DriftMetricsTest, AbsoluteDeltasAndProbabilityDifferences) {
  const DriftMetrics m = DoubleAndHalf().Compute();
  EXPECT_NEAR(m.mean_abs_delta, kLog2, 1e-6);
  EXPECT_NEAR(m.max_abs_delta, kLog2, 1e-6);
  EXPECT_NEAR(m.mean_exp_abs_delta, 2, 1e-6);
  EXPECT_EQ(m.share_above_1e6, 1);
  EXPECT_NEAR(m.mean_abs_probability_difference, 0.25, 1e-6);
  EXPECT_NEAR(m.max_abs_probability_difference, 0.3, 1e-6);
  EXPECT_NEAR(m.pearson_probability, -1, 1e-5);  // two points on a falling line
}

TEST(DriftMetricsTest, SplitsByTheSignOfTheAdvantage) {
  Tokens tokens = DoubleAndHalf();
  tokens.Add(0.5, 0.5, 0);  // neither
  const DriftMetrics m = tokens.Compute();
  EXPECT_EQ(m.positive_tokens, 1);
  EXPECT_EQ(m.negative_tokens, 1);
  EXPECT_NEAR(m.positive_mean_w, 2, 1e-6);
  EXPECT_NEAR(m.negative_mean_w, 0.5, 1e-6);
  EXPECT_NEAR(m.positive_mean_delta, kLog2, 1e-6);
  EXPECT_NEAR(m.negative_mean_delta, -kLog2, 1e-6);
}

TEST(DriftMetricsTest, SequencesInProductAndGeometricForm) {
  Tokens tokens;
  tokens.Add(0.2, 0.4, 1, 0);
  tokens.Add(0.2, 0.4, 1, 0);
  tokens.Add(0.6, 0.3, 1, 7);
  const DriftMetrics m = tokens.Compute();
  EXPECT_NEAR(m.sequence_log_ratio_sum_mean, (2 * kLog2 - kLog2) / 2, 1e-6);
  EXPECT_NEAR(m.sequence_log_ratio_mean_mean, 0, 1e-6);
  EXPECT_NEAR(m.sequence_log_ratio_max, 2 * kLog2, 1e-6);
  EXPECT_NEAR(m.log_ppl_gap, 0, 1e-6);
}

TEST(DriftMetricsTest, CalibrationComparesSurpriseWithEntropy) {
  Tokens tokens;
  tokens.Add(std::exp(-3.0), 0.1);  // surprise 3, entropy 1, variance 1.5 - 1
  tokens.Add(std::exp(-1.0), 0.1);  // surprise 1
  EXPECT_NEAR(tokens.Compute().calibration_z, 2 / std::sqrt(1.0), 1e-6);
}

TEST(DriftMetricsTest, QuantilesAreLinearBetweenOrderStatistics) {
  Tokens tokens;
  for (int i = 10; i >= 0; --i) {  // abs(delta) = 0, 0.1, ... 1.0
    tokens.Add(1e-3, 1e-3 * std::exp(0.1 * i));
  }
  const DriftMetrics m = tokens.Compute();
  EXPECT_NEAR(m.abs_delta_p50, 0.5, 1e-5);
  EXPECT_NEAR(m.abs_delta_p90, 0.9, 1e-5);
  EXPECT_NEAR(m.abs_delta_p99, 0.99, 1e-5);
}

TEST(DriftMetricsTest, LeavesOutMaskedTokensAndCountsThoseThatAreNotFinite) {
  Tokens tokens = DoubleAndHalf();
  tokens.Add(0.9, 0.001, 1, 0, /*masked_in=*/false);
  tokens.Add(0.5, 0.5);
  tokens.behaviour.back() = std::numeric_limits<float>::quiet_NaN();
  tokens.Add(0.5, 0.5);
  tokens.proximal.back() = -std::numeric_limits<float>::infinity();
  const DriftMetrics m = tokens.Compute();
  EXPECT_EQ(m.num_tokens, 2);
  EXPECT_EQ(m.num_nonfinite, 2);
  EXPECT_NEAR(m.mean_w, 1.25, 1e-6);
}

TEST(DriftMetricsTest, EqualPoliciesAndNoTokensGiveTheNeutralValues) {
  Tokens equal;
  equal.Add(0.3, 0.3);
  for (const DriftMetrics& m : {equal.Compute(), Tokens().Compute()}) {
    EXPECT_EQ(m.k3, 0);
    EXPECT_EQ(m.ess_fraction, 1);
    EXPECT_EQ(m.mean_w, 1);
    EXPECT_EQ(m.pearson_probability, 1);
    EXPECT_EQ(m.max_abs_delta, 0);
  }
}

TEST(NamedDriftMetricsTest, EveryNameIsUniqueAndUnderDrift) {
  std::set<std::string> names;
  for (const auto& [name, value] : NamedDriftMetrics({})) {
    EXPECT_EQ(name.rfind("drift/", 0), 0u) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(names.size(), 33u);
}

}  // namespace
}  // namespace tandem::offpolicy
