#include "trainer/preferences/reward_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tandem::trainer {
namespace {

using Numbers = std::vector<double>;

// The difference of rewards at which p is this.
double Logit(double p) { return std::log(p / (1 - p)); }

TEST(MeasureCalibration, WorksOutATableByHand) {
  // Four pairs with p = 0.9 of which one is ranked wrong (p of its label is 0.1), one with p = 0.6.
  const Numbers chosen = {Logit(0.9), Logit(0.9), Logit(0.9), Logit(0.1), Logit(0.6)};
  const Numbers rejected(5, 0.0);
  const PairCalibration result = MeasureCalibration({chosen, rejected}, 5);
  EXPECT_NEAR(result.accuracy, 0.8, 1e-12);
  EXPECT_EQ(result.num_ties, 0);
  // Bins are 0.1 wide: [0.6, 0.7) has one pair, and the other four have a confidence of 0.9.
  ASSERT_EQ(result.bins.size(), 5u);
  int64_t total = 0;
  for (const ReliabilityBin& bin : result.bins) total += bin.num_pairs;
  EXPECT_EQ(total, 5);
  // abs(0.75 - 0.9) 4 / 5 + abs(1 - 0.6) 1 / 5
  EXPECT_NEAR(result.expected_calibration_error, 0.15 * 0.8 + 0.4 * 0.2, 1e-12);
  EXPECT_NEAR(result.brier_score, (3 * 0.01 + 0.81 + 0.16) / 5, 1e-12);
}

TEST(MeasureCalibration, PutsAConfidenceIntoTheBinThatHasIt) {
  const Numbers chosen = {Logit(0.55), Logit(0.72), 1000}, rejected(3, 0.0);
  const PairCalibration result = MeasureCalibration({chosen, rejected}, 2);
  EXPECT_EQ(result.bins[0].num_pairs, 2);  // [0.5, 0.75)
  EXPECT_NEAR(result.bins[0].confidence, (0.55 + 0.72) / 2, 1e-12);
  EXPECT_EQ(result.bins[0].accuracy, 1);
  EXPECT_EQ(result.bins[1].num_pairs, 1);  // [0.75, 1], with 1
  EXPECT_EQ(result.bins[1].high, 1);
}

TEST(MeasureCalibration, ATieIsNotAccurateButPerfectlyCalibrated) {
  const Numbers rewards = {1, 2};
  const PairCalibration result = MeasureCalibration({rewards, rewards}, 4);
  EXPECT_EQ(result.accuracy, 0);
  EXPECT_EQ(result.num_ties, 2);
  EXPECT_EQ(result.expected_calibration_error, 0);
  EXPECT_EQ(result.brier_score, 0.25);
}

TEST(MeasureCalibration, IsZeroWithoutPairs) {
  const PairCalibration result = MeasureCalibration({}, 3);
  EXPECT_EQ(result.num_pairs, 0);
  EXPECT_EQ(result.expected_calibration_error, 0);
  EXPECT_EQ(result.bins.size(), 3u);
}

TEST(FitLengthBias, IsTheLineThroughTheOriginOfDifferences) {
  // Differences of lengths 1, -2, 3; of rewards 1, -1, 1: slope (1 + 2 + 3) / (1 + 4 + 9) = 3 / 7.
  const Numbers chosen = {1, 0, 1}, rejected = {0, 1, 0};
  const std::vector<int64_t> chosen_tokens = {5, 3, 7}, rejected_tokens = {4, 5, 4};
  const LengthBias bias = FitLengthBias({chosen, rejected}, chosen_tokens, rejected_tokens);
  EXPECT_NEAR(bias.slope, 3.0 / 7, 1e-12);
  EXPECT_NEAR(bias.correlation, 6 / std::sqrt(3.0 * 14), 1e-12);
  // Residuals 4 / 7, -1 / 7, -2 / 7: sum of squares 3 / 7, two degrees of freedom.
  EXPECT_NEAR(bias.standard_error, std::sqrt(3.0 / 7 / 2 / 14), 1e-12);
  EXPECT_NEAR(LengthControlled(2, 10, 3, bias), 2 - 3.0, 1e-12);
}

TEST(FitLengthBias, TheControlledRewardsHaveNone) {
  const Numbers chosen = {1.5, -0.3, 2.2, 0.1}, rejected = {0.2, 0.4, -1, 0.3};
  const std::vector<int64_t> chosen_tokens = {9, 2, 11, 4}, rejected_tokens = {3, 5, 2, 8};
  const LengthBias bias = FitLengthBias({chosen, rejected}, chosen_tokens, rejected_tokens);
  Numbers controlled_chosen, controlled_rejected;
  for (size_t i = 0; i < chosen.size(); ++i) {
    controlled_chosen.push_back(LengthControlled(chosen[i], chosen_tokens[i], 5, bias));
    controlled_rejected.push_back(LengthControlled(rejected[i], rejected_tokens[i], 5, bias));
  }
  EXPECT_GT(std::abs(bias.slope), 0.1);
  EXPECT_NEAR(
      FitLengthBias({controlled_chosen, controlled_rejected}, chosen_tokens, rejected_tokens).slope,
      0, 1e-12);
}

TEST(FitLengthBias, HasNoSlopeWhereAllLengthsAreEqual) {
  const Numbers chosen = {1, 2}, rejected = {0, 0};
  const std::vector<int64_t> tokens = {4, 4};
  const LengthBias bias = FitLengthBias({chosen, rejected}, tokens, tokens);
  EXPECT_EQ(bias.slope, 0);
  EXPECT_TRUE(std::isnan(bias.standard_error));
}

// Three heads, two completions: 1 2 6 and 4 4 4.
const Numbers kHeads = {1, 4, 2, 4, 6, 4};

TEST(AggregateEnsemble, TakesTheMeanOrTheLeastOrALowerBound) {
  const double deviation = std::sqrt((4.0 + 1 + 9) / 3);
  EnsembleRewards result = AggregateEnsemble(kHeads, 3, EnsembleAggregation::kMean, 1);
  EXPECT_NEAR(result.reward[0], 3, 1e-12);
  EXPECT_NEAR(result.reward[1], 4, 1e-12);
  EXPECT_NEAR(result.disagreement[0], deviation, 1e-12);
  EXPECT_NEAR(result.disagreement[1], 0, 1e-12);

  result = AggregateEnsemble(kHeads, 3, EnsembleAggregation::kMin, 1);
  EXPECT_EQ(result.reward[0], 1);
  EXPECT_EQ(result.reward[1], 4);

  result = AggregateEnsemble(kHeads, 3, EnsembleAggregation::kMeanMinusStd, 2);
  EXPECT_NEAR(result.reward[0], 3 - 2 * deviation, 1e-12);
  EXPECT_NEAR(result.reward[1], 4, 1e-12);
}

TEST(AggregateEnsemble, OneHeadAgreesWithItself) {
  const EnsembleRewards result =
      AggregateEnsemble(Numbers{1, -2}, 1, EnsembleAggregation::kMeanMinusStd, 5);
  EXPECT_EQ(result.reward, (Numbers{1, -2}));
  EXPECT_EQ(result.disagreement, (Numbers{0, 0}));
}

}  // namespace
}  // namespace tandem::trainer
