#include "trainer/preferences/preference_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "tests/trainer/preferences/central_difference.h"

namespace tandem::trainer {
namespace {

using Kind = PreferenceLossKind;
using ::tandem::testing::CentralDifference;

// One pair of completions with 4 and 2 tokens.
struct Pair {
  double chosen = -4, rejected = -6, reference_chosen = -6, reference_rejected = -3;
  int64_t chosen_tokens = 4, rejected_tokens = 2;
  double margin = 0, nll = 4;
  int64_t nll_tokens = 4;

  PreferenceLoss Loss(const PreferenceLossOptions& options) const {
    return ComputePreferenceLoss({.chosen_logprobs = {&chosen, 1},
                                  .rejected_logprobs = {&rejected, 1},
                                  .reference_chosen_logprobs = {&reference_chosen, 1},
                                  .reference_rejected_logprobs = {&reference_rejected, 1},
                                  .chosen_tokens = {&chosen_tokens, 1},
                                  .rejected_tokens = {&rejected_tokens, 1},
                                  .margins = {&margin, 1},
                                  .chosen_nll = {&nll, 1},
                                  .nll_tokens = {&nll_tokens, 1}},
                                 options);
  }
  double Value(const PreferenceLossOptions& options) const { return Loss(options).value[0]; }
};

// The pair has ratio_c = 2, ratio_r = -3; with beta = 0.2, h = 1.
const double kSoftplusMinus1 = std::log1p(std::exp(-1.0));  // -log sigmoid(1) = 0.313262

TEST(PreferenceLoss, DpoIsTheLogisticLossOfTheDifferenceOfLogRatios) {
  const PreferenceLoss loss = Pair{}.Loss({.beta = 0.2});
  EXPECT_NEAR(loss.value[0], 0.3132616875, 1e-9);
  EXPECT_NEAR(loss.chosen_slope[0], -0.2 * 0.2689414214, 1e-9);  // -beta sigmoid(-1)
  EXPECT_NEAR(loss.rejected_slope[0], 0.2 * 0.2689414214, 1e-9);
  EXPECT_EQ(loss.nll_slope[0], 0);
  EXPECT_NEAR(loss.chosen_reward[0], 0.4, 1e-12);
  EXPECT_NEAR(loss.rejected_reward[0], -0.6, 1e-12);
}

TEST(PreferenceLoss, SmoothedLabelsMixInTheLossOfTheFlippedPair) {
  // -log sigmoid(-1) = 1 - log sigmoid(1).
  EXPECT_NEAR(Pair{}.Value({.beta = 0.2, .label_smoothing = 0.1}), kSoftplusMinus1 + 0.1, 1e-12);
}

TEST(PreferenceLoss, AMarginIsTakenOffTheLogit) {
  EXPECT_NEAR((Pair{.margin = 1}.Value({.beta = 0.2})), std::log(2.0), 1e-12);
}

TEST(PreferenceLoss, DpoNormDividesEachLogRatioByItsTokens) {
  // h = 0.5 (2 / 4 + 3 / 2) = 1; the slopes are those of the sums.
  const PreferenceLoss loss = Pair{}.Loss({.kind = Kind::kDpoNorm, .beta = 0.5});
  EXPECT_NEAR(loss.value[0], kSoftplusMinus1, 1e-12);
  EXPECT_NEAR(loss.chosen_slope[0], -0.5 * 0.2689414214 / 4, 1e-9);
  EXPECT_NEAR(loss.rejected_slope[0], 0.5 * 0.2689414214 / 2, 1e-9);
}

TEST(PreferenceLoss, TheHingeIsZeroFromAMarginOfOneOn) {
  EXPECT_NEAR((Pair{}.Value({.kind = Kind::kDpoHinge, .beta = 0.1})), 0.5, 1e-12);
  EXPECT_EQ((Pair{}.Loss({.kind = Kind::kDpoHinge, .beta = 0.1}).chosen_slope[0]), -0.1);
  const PreferenceLoss flat = Pair{}.Loss({.kind = Kind::kDpoHinge, .beta = 0.21});
  EXPECT_EQ(flat.value[0], 0);
  EXPECT_EQ(flat.chosen_slope[0], 0);
  EXPECT_EQ(flat.rejected_slope[0], 0);
}

TEST(PreferenceLoss, Bug60IpoComparesMeansOverTokensAndNotSums) {
  // Means: 2 / 4 + 3 / 2 = 2, wanted 1 / (2 beta) = 1. The sums would give (5 - 1)^2 = 16.
  const PreferenceLoss loss = Pair{}.Loss({.kind = Kind::kIpo, .beta = 0.5});
  EXPECT_NEAR(loss.value[0], 1, 1e-12);
  EXPECT_NEAR(loss.chosen_slope[0], 2.0 / 4, 1e-12);
  EXPECT_NEAR(loss.rejected_slope[0], -2.0 / 2, 1e-12);
  EXPECT_NEAR(loss.chosen_reward[0], 0.5 * 2, 1e-12);  // of the sum, as in TRL
}

TEST(PreferenceLoss, RobustIsTheUnbiasedEstimateOfDposLossUnderFlippedLabels) {
  // The expectation over labels that are flipped with probability 0.2 is the loss of the true one.
  const PreferenceLossOptions options{.kind = Kind::kRobust, .beta = 0.2, .label_smoothing = 0.2};
  const Pair flipped{-6, -4, -3, -6, 2, 4};
  EXPECT_NEAR(0.8 * Pair{}.Value(options) + 0.2 * flipped.Value(options), kSoftplusMinus1, 1e-12);
}

TEST(PreferenceLoss, ExoIsAKlThatIsZeroAtItsTarget) {
  // h = log((1 - e) / e): the two distributions are equal.
  const double smoothing = 1 / (1 + std::exp(1.0));
  const PreferenceLossOptions best{.kind = Kind::kExo, .beta = 0.2, .label_smoothing = smoothing};
  EXPECT_NEAR(Pair{}.Value(best), 0, 1e-12);
  EXPECT_NEAR(Pair{}.Loss(best).chosen_slope[0], 0, 1e-12);
  // KL((s, 1 - s) || (1 - e, e)) with s = sigmoid(1) = 0.7310586, e = 0.25:
  // 0.7310586 log(0.7310586 / 0.75) + 0.2689414 log(0.2689414 / 0.25)
  EXPECT_NEAR(
      (Pair{}.Value({.kind = Kind::kExo, .beta = 0.2, .label_smoothing = 0.25})),
      0.7310585786 * std::log(0.7310585786 / 0.75) + 0.2689414214 * std::log(0.2689414214 / 0.25),
      1e-9);
}

TEST(PreferenceLoss, ApoZeroRaisesTheChosenAndLowersTheRejected) {
  // beta = 0.5: 1 - sigmoid(1) + sigmoid(-1.5).
  const PreferenceLoss loss = Pair{}.Loss({.kind = Kind::kApoZero, .beta = 0.5});
  EXPECT_NEAR(loss.value[0], 0.2689414214 + 0.1824255238, 1e-9);
  EXPECT_LT(loss.chosen_slope[0], 0);
  EXPECT_GT(loss.rejected_slope[0], 0);
}

TEST(PreferenceLoss, ApoDownLowersTheChosenTooWhenThePairIsWellApart) {
  // beta = 0.5: sigmoid(1) + 1 - sigmoid(2.5).
  const PreferenceLoss loss = Pair{}.Loss({.kind = Kind::kApoDown, .beta = 0.5});
  EXPECT_NEAR(loss.value[0], 0.7310585786 + 0.0758581800, 1e-9);
  EXPECT_GT(loss.chosen_slope[0], 0);
  EXPECT_GT(loss.rejected_slope[0], 0);
}

TEST(PreferenceLoss, CpoComparesLogProbsAndAddsTheNegativeLogLikelihood) {
  // h = 0.5 (-4 + 6) = 1; 4 nats over 4 tokens.
  const PreferenceLoss loss = Pair{}.Loss({.kind = Kind::kCpo, .beta = 0.5});
  EXPECT_NEAR(loss.value[0], kSoftplusMinus1 + 1, 1e-12);
  EXPECT_NEAR(loss.nll_slope[0], 0.25, 1e-12);
  EXPECT_NEAR(loss.chosen_reward[0], -2, 1e-12);
  EXPECT_NEAR((Pair{}.Value({.kind = Kind::kCpo, .beta = 0.5, .cpo_alpha = 0})), kSoftplusMinus1,
              1e-12);
}

TEST(PreferenceLoss, Bug61SimpoIsPerTokenAndHasATargetMargin) {
  // h = 1 (-4 / 4 + 6 / 2) - 1 = 1. Without the lengths it would be (-4 + 6) - 1, the same here, so
  // the second pair has other lengths: -4 / 1 + 6 / 6 - 1 = -4.
  const PreferenceLossOptions options{.kind = Kind::kSimpo, .beta = 1, .simpo_gamma = 1};
  EXPECT_NEAR(Pair{}.Value(options), kSoftplusMinus1, 1e-12);
  Pair other;
  other.chosen_tokens = 1;
  other.rejected_tokens = 6;
  EXPECT_NEAR(other.Value(options), 4 + std::log1p(std::exp(-4.0)), 1e-12);
  EXPECT_NEAR(other.Loss(options).chosen_reward[0], -4, 1e-12);
  EXPECT_NEAR(other.Loss(options).rejected_reward[0], -1, 1e-12);
}

TEST(PreferenceLoss, OrpoIsTheOddsRatioOfMeanProbabilitiesAndTheNegativeLogLikelihood) {
  // p_c = 1/2, p_r = 1/5: odds 1 and 1/4, so log sigmoid(log 4) = log(4 / 5).
  const Pair pair{4 * std::log(0.5), 2 * std::log(0.2)};
  EXPECT_NEAR((pair.Value({.kind = Kind::kOrpo, .beta = 0.3})), 0.3 * std::log(1.25) + 1, 1e-12);
}

TEST(PreferenceLoss, RpoAddsTheMeanOverTheTokensOfTheBatch) {
  const std::vector<double> logprobs = {-4, -4}, zeros = {0, 0}, nll = {4, 2};
  const std::vector<int64_t> tokens = {2, 4};
  PreferencePairs pairs{.chosen_logprobs = logprobs,
                        .rejected_logprobs = logprobs,
                        .reference_chosen_logprobs = zeros,
                        .reference_rejected_logprobs = zeros,
                        .chosen_nll = nll,
                        .nll_tokens = tokens};
  PreferenceLoss loss = ComputePreferenceLoss(pairs, {.rpo_alpha = 0.5});
  // 6 nats over 6 tokens. The mean of the means of both completions would be 1.25.
  EXPECT_NEAR(SummarisePreferences(loss).loss, std::log(2.0) + 0.5, 1e-12);
  // As half of a batch whose pairs have 6 tokens each.
  pairs.batch_nll_tokens = 6;
  loss = ComputePreferenceLoss(pairs, {.rpo_alpha = 0.5});
  EXPECT_NEAR(loss.value[0], std::log(2.0) + 0.5 * 4 / 6, 1e-12);
  EXPECT_NEAR(loss.nll_slope[1], 0.5 / 6, 1e-12);
}

TEST(PreferenceLoss, Bug62IsFiniteWithItsSlopesAtLogitsOfPlusAndMinusAHundred) {
  for (const Kind kind : {Kind::kDpo, Kind::kRobust, Kind::kExo, Kind::kApoZero, Kind::kApoDown}) {
    const PreferenceLossOptions options{
        .kind = kind, .beta = 1, .label_smoothing = kind == Kind::kExo ? 0.1 : 0};
    for (const double h : {-1000.0, -100.0, 100.0, 1000.0}) {
      const PreferenceLoss loss = Pair{h, 0, 0, 0}.Loss(options);
      EXPECT_TRUE(std::isfinite(loss.value[0]) && std::isfinite(loss.chosen_slope[0])) << h;
    }
  }
  // log(sigmoid(-100)) is -100 and not the logarithm of 0 plus something.
  EXPECT_NEAR((Pair{-100, 0, 0, 0}.Value({.beta = 1})), 100, 1e-9);
  EXPECT_NEAR((Pair{100, 0, 0, 0}.Value({.beta = 1})), std::exp(-100.0), 1e-50);
  EXPECT_NEAR((Pair{-100, 0, 0, 0}.Loss({.beta = 1}).chosen_slope[0]), -1, 1e-12);
}

TEST(PreferenceLoss, Bug63OrpoIsExactNextToAProbabilityOfOne) {
  const PreferenceLossOptions options{.kind = Kind::kOrpo, .beta = 1};
  // p_c = 1 - 1e-6, p_r = 1/2: -log sigmoid = log(1 + (1 - p_c) / p_c).
  Pair near{4 * std::log1p(-1e-6), 2 * std::log(0.5)};
  near.nll = 0;
  EXPECT_NEAR(near.Value(options) / std::log1p(1e-6 / (1 - 1e-6)), 1, 1e-13);
  // The slope by the mean is -p_r / (p_c (1 - p_r) + p_r (1 - p_c)): -1 near p_c = 1.
  EXPECT_NEAR(near.Loss(options).chosen_slope[0], -0.25, 1e-6);
  // Probabilities that fp32 rounds to 1, and to 0.
  for (const double sum : {0.0, -1e-12, -4000.0}) {
    for (const auto& pair : {Pair{sum, -2}, Pair{-2, sum}, Pair{sum, sum}}) {
      const PreferenceLoss loss = pair.Loss(options);
      EXPECT_TRUE(std::isfinite(loss.value[0])) << sum;
      EXPECT_TRUE(std::isfinite(loss.chosen_slope[0])) << sum;
      EXPECT_TRUE(std::isfinite(loss.rejected_slope[0])) << sum;
    }
  }
}

class EveryPreferenceLoss : public ::testing::TestWithParam<std::tuple<Kind, double>> {};

TEST_P(EveryPreferenceLoss, HasTheSlopesOfItsValue) {
  PreferenceLossOptions options{.kind = std::get<0>(GetParam()), .beta = 0.3};
  options.label_smoothing = std::get<1>(GetParam());
  if (options.kind == Kind::kExo) options.label_smoothing += 0.01;
  if (options.kind != Kind::kCpo && options.kind != Kind::kOrpo) options.rpo_alpha = 0.7;
  const auto value = [&options](const std::vector<double>& x) {
    Pair pair;
    pair.chosen = x[0];
    pair.rejected = x[1];
    pair.nll = x[2];
    pair.margin = 0.4;
    return pair.Value(options);
  };
  for (const std::vector<double>& at :
       {std::vector<double>{-4, -6, 4}, {-1, -0.5, 2}, {-9, -0.2, 5}, {-12, -2.5, 1}}) {
    Pair pair;
    pair.chosen = at[0];
    pair.rejected = at[1];
    pair.nll = at[2];
    pair.margin = 0.4;
    const PreferenceLoss loss = pair.Loss(options);
    EXPECT_NEAR(loss.chosen_slope[0], CentralDifference(value, at, 0), 1e-7);
    EXPECT_NEAR(loss.rejected_slope[0], CentralDifference(value, at, 1), 1e-7);
    EXPECT_NEAR(loss.nll_slope[0], CentralDifference(value, at, 2), 1e-7);
    EXPECT_TRUE(loss.chosen_slope[0] != 0 || loss.value[0] == loss.nll_slope[0] * at[2]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EveryPreferenceLoss,
    ::testing::Combine(::testing::Values(Kind::kDpo, Kind::kDpoNorm, Kind::kDpoHinge, Kind::kIpo,
                                         Kind::kRobust, Kind::kExo, Kind::kApoZero, Kind::kApoDown,
                                         Kind::kCpo, Kind::kSimpo, Kind::kOrpo),
                       ::testing::Values(0.0, 0.2)));

TEST(PreferenceMetrics, AreMeansAndEqualRewardsAreNotAccurate) {
  const PreferenceLoss loss{
      .value = {1, 2, 3, 6}, .chosen_reward = {1, 2, 0, 5}, .rejected_reward = {0, 3, 0, 1}};
  const PreferenceMetrics metrics = SummarisePreferences(loss);
  EXPECT_EQ(metrics.loss, 3);
  EXPECT_EQ(metrics.chosen_reward, 2);
  EXPECT_EQ(metrics.rejected_reward, 1);
  EXPECT_EQ(metrics.margin, 1);
  EXPECT_EQ(metrics.accuracy, 0.5);
  EXPECT_EQ(SummarisePreferences({}).loss, 0);
}

TEST(DesensitisedSum, WeighsTokensBeyondTheShorterLength) {
  const std::vector<double> logprobs = {-1, -2, -4, -8};
  EXPECT_EQ(DesensitisedSum(logprobs, 2, 0.5), -1 - 2 - 2 - 4);
  EXPECT_EQ(DesensitisedSum(logprobs, 4, 0.5), -15);
  EXPECT_EQ(DesensitisedSum(logprobs, 2, 1), -15);
  EXPECT_EQ(DesensitisedSum(logprobs, 2, 0), -3);
}

}  // namespace
}  // namespace tandem::trainer
