#include "common/drift/drift_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "tests/common/drift/token_lines.h"

namespace tandem::offpolicy {
namespace {

struct Tokens : TokenLines {
  DriftMetrics Compute() const { return ComputeDriftMetrics(view()); }
};

// Two tokens with w = 2 and two with w = 1/2.
Tokens DoubleAndHalf() {
  Tokens tokens;
  for (int i = 0; i < 2; ++i) {
    tokens.Add(0.2, 0.4, 1, 0);
    tokens.Add(0.6, 0.3, -1, 1);
  }
  return tokens;
}

const double kLog2 = std::log(2.0);

TEST(DriftMetricsTest, KlEstimatorsOfADoubledAndAHalvedProbability) {
  const DriftMetrics m = DoubleAndHalf().Compute();
  EXPECT_EQ(m.Get("num_tokens"), 4);
  EXPECT_NEAR(m.Get("k1"), 0, 1e-7);
  EXPECT_NEAR(m.Get("k2"), kLog2 * kLog2 / 2, 1e-6);
  EXPECT_NEAR(m.Get("k3"), 0.25, 1e-6);  // mean w = 1.25, mean delta = 0
  EXPECT_NEAR(m.Get("reverse_kl"), (2 * kLog2 - kLog2 / 2) / 2, 1e-6);
  EXPECT_NEAR(m.Get("chi2"), (4 + 0.25) / 2 - 1, 1e-6);
}

TEST(DriftMetricsTest, EffectiveSampleSizeAndMeanWeight) {
  const DriftMetrics m = DoubleAndHalf().Compute();
  EXPECT_NEAR(m.Get("ess_fraction"), 2.5 * 2.5 / (2 * 4.25), 1e-6);
  EXPECT_NEAR(m.Get("mean_w"), 1.25, 1e-6);
  EXPECT_NEAR(m.Get("mean_w_stderr"), std::sqrt((2.125 - 1.5625) / 3), 1e-6);
}

TEST(DriftMetricsTest, AbsoluteDeltasAndProbabilityDifferences) {
  const DriftMetrics m = DoubleAndHalf().Compute();
  EXPECT_NEAR(m.Get("mean_abs_delta"), kLog2, 1e-6);
  EXPECT_NEAR(m.Get("max_abs_delta"), kLog2, 1e-6);
  EXPECT_NEAR(m.Get("mean_exp_abs_delta"), 2, 1e-6);
  EXPECT_EQ(m.Get("share_above_1e6"), 1);
  EXPECT_NEAR(m.Get("mean_abs_probability_difference"), 0.25, 1e-6);
  EXPECT_NEAR(m.Get("max_abs_probability_difference"), 0.3, 1e-6);
  EXPECT_NEAR(m.Get("pearson_probability"), -1, 1e-5);  // two points on a falling line
}

TEST(DriftMetricsTest, SplitsByTheSignOfTheAdvantage) {
  Tokens tokens = DoubleAndHalf();
  tokens.Add(0.5, 0.5, 0);  // neither
  const DriftMetrics m = tokens.Compute();
  EXPECT_EQ(m.Get("positive_tokens"), 2);
  EXPECT_EQ(m.Get("negative_tokens"), 2);
  EXPECT_NEAR(m.Get("positive_mean_w"), 2, 1e-6);
  EXPECT_NEAR(m.Get("negative_mean_w"), 0.5, 1e-6);
  EXPECT_NEAR(m.Get("positive_mean_delta"), kLog2, 1e-6);
  EXPECT_NEAR(m.Get("negative_mean_delta"), -kLog2, 1e-6);
}

TEST(DriftMetricsTest, SequencesInProductAndGeometricForm) {
  Tokens tokens;
  tokens.Add(0.2, 0.4, 1, 0);
  tokens.Add(0.2, 0.4, 1, 0);
  tokens.Add(0.6, 0.3, 1, 1);
  const DriftMetrics m = tokens.Compute();
  EXPECT_NEAR(m.Get("sequence_log_ratio_sum_mean"), (2 * kLog2 - kLog2) / 2, 1e-6);
  EXPECT_NEAR(m.Get("sequence_log_ratio_mean_mean"), 0, 1e-6);
  EXPECT_NEAR(m.Get("sequence_log_ratio_max"), 2 * kLog2, 1e-6);
  EXPECT_NEAR(m.Get("log_ppl_gap"), 0, 1e-6);
}

TEST(DriftMetricsTest, CalibrationComparesSurpriseWithEntropy) {
  Tokens tokens;
  tokens.Add(std::exp(-3.0), 0.1);  // surprise 3, entropy 1, variance 1.5 - 1
  tokens.Add(std::exp(-1.0), 0.1);  // surprise 1
  EXPECT_NEAR(tokens.Compute().Get("calibration_z"), 2 / std::sqrt(1.0), 1e-6);
}

TEST(DriftMetricsTest, CalibrationIsUnknownWithoutTheEntropiesOfTheSampler) {
  Tokens tokens = DoubleAndHalf();
  const auto unknown = std::numeric_limits<float>::quiet_NaN();
  tokens.entropies.assign(4, unknown);
  tokens.second_moments.assign(4, unknown);
  const DriftMetrics m = tokens.Compute();
  EXPECT_TRUE(std::isnan(m.Get("calibration_z")));
  EXPECT_TRUE(std::isnan(m.Get("calibration_surprise")));
  EXPECT_NEAR(m.Get("mean_w"), 1.25, 1e-6) << "the rest needs only the two log-probs";
}

TEST(DriftMetricsTest, QuantilesComeFromTheSketchToHalfAPercent) {
  Tokens tokens;
  for (int i = 100; i >= 0; --i) {  // abs(delta) = 0, 0.01, ... 1.00
    tokens.Add(1e-3, 1e-3 * std::exp(0.01 * i));
  }
  const DriftMetrics m = tokens.Compute();
  EXPECT_NEAR(m.Get("abs_delta_p50"), 0.5, 0.5 * 0.006);
  EXPECT_NEAR(m.Get("abs_delta_p90"), 0.9, 0.9 * 0.006);
  EXPECT_NEAR(m.Get("abs_delta_p99"), 0.99, 0.99 * 0.006);
}

TEST(DriftMetricsTest, LeavesOutMaskedTokensAndCountsThoseThatAreNotFinite) {
  Tokens tokens = DoubleAndHalf();
  tokens.Add(0.9, 0.001, 1, 0, /*masked_in=*/false);
  tokens.Add(0.5, 0.5);
  tokens.behaviour.back() = std::numeric_limits<float>::quiet_NaN();
  tokens.Add(0.5, 0.5);
  tokens.proximal.back() = -std::numeric_limits<float>::infinity();
  const DriftMetrics m = tokens.Compute();
  EXPECT_EQ(m.Get("num_tokens"), 4);
  EXPECT_EQ(m.Get("num_nonfinite"), 2);
  EXPECT_NEAR(m.Get("mean_w"), 1.25, 1e-6);
}

TEST(DriftMetricsTest, EqualPoliciesAndNoTokensGiveTheNeutralValues) {
  Tokens equal;
  equal.Add(0.3, 0.3);
  for (const DriftMetrics& m : {equal.Compute(), Tokens().Compute()}) {
    EXPECT_EQ(m.Get("k3"), 0);
    EXPECT_EQ(m.Get("ess_fraction"), 1);
    EXPECT_EQ(m.Get("mean_w"), 1);
    EXPECT_EQ(m.Get("pearson_probability"), 1);
    EXPECT_EQ(m.Get("max_abs_delta"), 0);
  }
}

// Sixteen completions of two tokens, w = 1.1 and 1 / 1.1 in half of them, 1 in the others.
Tokens SixteenCompletions() {
  Tokens tokens;
  for (int32_t s = 0; s < 16; ++s) {
    tokens.Add(0.5, s % 2 ? 0.55 : 0.5, 1, s);
    tokens.Add(0.55, s % 2 ? 0.5 : 0.55, 1, s);
  }
  return tokens;
}

TEST(DriftIntervalTest, HoldsTheValueAndLeavesZeroOutWhereEveryCompletionDisagrees) {
  const DriftMetrics m = SixteenCompletions().Compute();
  const DriftNumber& mean_abs = m.Number("mean_abs_delta");
  EXPECT_EQ(mean_abs.withheld, Withheld::kNothing);
  EXPECT_NEAR(mean_abs.interval.value, std::log(1.1) / 2, 1e-6);
  EXPECT_LT(mean_abs.interval.low, mean_abs.interval.value);
  EXPECT_GT(mean_abs.interval.high, mean_abs.interval.value);
  EXPECT_TRUE(mean_abs.interval.Excludes(0));
  EXPECT_FALSE(m.Number("mean_delta").interval.Excludes(0));
}

TEST(DriftIntervalTest, IsWithheldBelowEightClusters) {
  Tokens tokens = SixteenCompletions();
  for (size_t s = 0; s < tokens.group.size(); ++s) tokens.group[s] = static_cast<int32_t>(s / 4);
  const DriftMetrics by_group = ComputeDriftMetrics(tokens.view(), ClusterBy::kGroup);
  EXPECT_EQ(by_group.Number("k3").withheld, Withheld::kFewClusters);
  EXPECT_FALSE(by_group.Number("k3").interval.known());
  EXPECT_NEAR(by_group.Get("k3"), tokens.Compute().Get("k3"), 1e-12);
  EXPECT_EQ(tokens.Compute().Number("abs_delta_p999").withheld, Withheld::kFewTokens);
}

TEST(DriftIntervalTest, OneGiantWeightIsSaidNotAveraged) {
  Tokens tokens = SixteenCompletions();
  tokens.Add(1e-6, 0.5, 1, 3);  // w = 500 000
  const DriftMetrics m = tokens.Compute();
  EXPECT_TRUE(m.tally.token_weight_dominates());
  EXPECT_EQ(m.Number("chi2").withheld, Withheld::kHeavyTail);
  EXPECT_TRUE(std::isnan(m.Get("chi2")));
  EXPECT_NEAR(m.Get("ess_fraction"), 1.0 / 33, 1e-3) << "a fact about this batch: one token counts";
}

TEST(DriftIntervalTest, OfEqualPoliciesIsAPoint) {
  Tokens tokens;
  for (int32_t s = 0; s < 10; ++s) tokens.Add(0.3, 0.3, 1, s);
  const DriftNumber k3 = tokens.Compute().Number("k3");
  EXPECT_EQ(k3.interval.low, 0);
  EXPECT_EQ(k3.interval.high, 0);
}

TEST(DriftTallyTest, PartsMergeIntoTheWhole) {
  const Tokens whole = SixteenCompletions();
  Tokens halves[2];
  for (size_t t = 0; t < whole.behaviour.size(); ++t) {
    halves[t / 16].Add(std::exp(whole.behaviour[t]), std::exp(whole.proximal[t]), 1,
                       whole.sequence[t] % 8);
  }
  DriftTally merged = TallyDrift(halves[0].view());
  merged.Merge(TallyDrift(halves[1].view()));
  const DriftTally expected = TallyDrift(whole.view());
  EXPECT_NEAR(merged.sums.mean_k3(), expected.sums.mean_k3(), 1e-9);
  EXPECT_NEAR(merged.sums.sequence_mean_w(), expected.sums.sequence_mean_w(), 1e-6);
  EXPECT_EQ(merged.sums.sequences, 16);
  EXPECT_EQ(merged.abs_delta.Quantile(0.9), expected.abs_delta.Quantile(0.9));
  EXPECT_NEAR(merged.max_abs_delta, std::log(1.1), 1e-6);
}

TEST(NamedDriftMetricsTest, EveryNameIsUniqueAndUnderDriftAndBoundsStandOnlyWhereKnown) {
  std::map<std::string, double> names;
  for (const auto& [name, value] : NamedDriftMetrics(SixteenCompletions().Compute())) {
    EXPECT_EQ(name.rfind("drift/", 0), 0u) << name;
    EXPECT_TRUE(names.emplace(name, value).second) << name;
  }
  EXPECT_LT(names.at("drift/mean_abs_delta_low"), names.at("drift/mean_abs_delta"));
  EXPECT_FALSE(names.contains("drift/max_abs_delta_low"));
  EXPECT_FALSE(names.contains("drift/abs_delta_p999_high"));
}

}  // namespace
}  // namespace tandem::offpolicy
