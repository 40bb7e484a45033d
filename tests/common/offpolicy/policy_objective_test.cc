#include "common/offpolicy/policy_objective.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::offpolicy {
namespace {

using ::tandem::testing::FailsWith;

struct ObjectiveBatch {
  std::vector<double> target, centre, weight, advantages;
  std::vector<uint8_t> kept;
  std::vector<int64_t> completion;
  std::optional<double> cutoff = {};

  void Add(double log_target, double log_centre, double advantage, int64_t of = 0, double w = 1) {
    target.push_back(log_target);
    centre.push_back(log_centre);
    advantages.push_back(advantage);
    weight.push_back(w);
    kept.push_back(1);
    completion.push_back(of);
  }
  ObjectiveInputs Inputs() const {
    return {target, centre, weight, advantages, kept, completion, cutoff};
  }
  Objective Compute(const ObjectiveOptions& options) const {
    return ComputeObjective(Inputs(), options);
  }
};

// Tokens in completions of their own, with ratio r to a centre of probability 0.1.
ObjectiveBatch Ratios(const std::vector<std::pair<double, double>>& ratios_and_advantages) {
  ObjectiveBatch batch;
  for (const auto& [r, advantage] : ratios_and_advantages) {
    batch.Add(std::log(0.1 * r), std::log(0.1), advantage,
              static_cast<int64_t>(batch.target.size()));
  }
  return batch;
}

double Slope(double r, double advantage, const ObjectiveOptions& options) {
  return Ratios({{r, advantage}}).Compute(options).slope[0];
}

double Value(double r, double advantage, const ObjectiveOptions& options) {
  return Ratios({{r, advantage}}).Compute(options).value[0];
}

void ExpectAllNear(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t t = 0; t < want.size(); ++t) EXPECT_NEAR(got[t], want[t], 1e-12) << "token " << t;
}

TEST(PolicyObjectiveTest, Bug08TheRatioOfEqualPoliciesIsOne) {
  for (const ObjectiveKind kind :
       {ObjectiveKind::kClip, ObjectiveKind::kSapo, ObjectiveKind::kGspo, ObjectiveKind::kM2po,
        ObjectiveKind::kCispo, ObjectiveKind::kTopr, ObjectiveKind::kVespo, ObjectiveKind::kDppoTv,
        ObjectiveKind::kDppoKl}) {
    // On-policy, every method has the slope of REINFORCE.
    EXPECT_NEAR(Slope(1, 2, {.kind = kind}), -2, 1e-12) << static_cast<int>(kind);
    EXPECT_NEAR(Slope(1, -2, {.kind = kind}), 2, 1e-12) << static_cast<int>(kind);
  }
}

// r in {0.5, 1.5} with A in {+1, -1}: the slope vanishes at (1.5, +) and (0.5, -) only.
TEST(PolicyObjectiveTest, Bug28ClipsOnTheSideThatTheAdvantageNames) {
  const Objective o = Ratios({{1.5, 1}, {1.5, -1}, {0.5, 1}, {0.5, -1}, {1.5, 2}}).Compute({});
  ExpectAllNear(o.slope, {0, 1.5, -0.5, 0, 0});
  ExpectAllNear(o.value, {-1.2, 1.5, -0.5, 0.8, -2.4});
  EXPECT_EQ(o.num_clip_high, 2);
  EXPECT_EQ(o.num_clip_low, 1);
}

TEST(PolicyObjectiveTest, ClipBoundsMayDiffer) {
  const ObjectiveOptions options = {.clip_low = 0.1, .clip_high = 0.4};
  EXPECT_NEAR(Value(2, 1, options), -1.4, 1e-12);
  EXPECT_NEAR(Value(0.5, -1, options), 0.9, 1e-12);
}

TEST(PolicyObjectiveTest, Bug29DualClipBoundsTheLossOfANegativeAdvantage) {
  EXPECT_NEAR(Value(100, -1, {}), 100, 1e-9);
  EXPECT_NEAR(Value(100, -1, {.dual_clip = 3}), 3, 1e-12);
  EXPECT_NEAR(Value(2, -1, {.dual_clip = 3}), 2, 1e-12);
  EXPECT_NEAR(Value(100, 1, {.dual_clip = 3}), -1.2, 1e-12);
  const Objective o = Ratios({{100, -1}}).Compute({.dual_clip = 3});
  EXPECT_EQ(o.num_dual_clip, 1);
  EXPECT_EQ(o.slope[0], 0);
}

TEST(PolicyObjectiveTest, Bug40LogRatiosOfFiftyStayFinite) {
  ObjectiveBatch batch;
  batch.Add(-1, -51, -1);
  batch.Add(-51, -1, 1);
  ExpectAllNear(batch.Compute({}).value, {std::exp(20.0), -std::exp(-20.0)});
  for (const ObjectiveKind kind :
       {ObjectiveKind::kSapo, ObjectiveKind::kGspo, ObjectiveKind::kM2po, ObjectiveKind::kCispo,
        ObjectiveKind::kTopr, ObjectiveKind::kVespo, ObjectiveKind::kDppoTv,
        ObjectiveKind::kDppoKl}) {
    const Objective o = batch.Compute({.kind = kind});
    for (const size_t t : {0, 1}) {
      EXPECT_TRUE(std::isfinite(o.value[t]) && std::isfinite(o.slope[t]))
          << static_cast<int>(kind) << " " << t;
    }
  }
}

TEST(PolicyObjectiveTest, Bug10WhatIsNotKeptCountsNothingWhateverItHolds) {
  ObjectiveBatch batch;
  batch.Add(-1, -1, 1);
  batch.Add(std::numeric_limits<double>::quiet_NaN(), -1, 1);
  batch.Add(-1, -1, std::numeric_limits<double>::infinity());
  batch.kept = {1, 0, 0};
  for (const ObjectiveKind kind :
       {ObjectiveKind::kClip, ObjectiveKind::kGspo, ObjectiveKind::kVespo, ObjectiveKind::kM2po}) {
    const Objective o = batch.Compute({.kind = kind});
    ExpectAllNear({o.slope[0], o.slope[1], o.slope[2]}, {-1, 0, 0});
    EXPECT_EQ(o.value[1], 0);
  }
}

TEST(PolicyObjectiveTest, WeightsMultiplyValueAndSlope) {
  for (const ObjectiveKind kind : {ObjectiveKind::kClip, ObjectiveKind::kSapo,
                                   ObjectiveKind::kCispo, ObjectiveKind::kDppoTv}) {
    ObjectiveBatch batch = Ratios({{1.1, 2}, {0.9, -1}});
    const Objective plain = batch.Compute({.kind = kind});
    batch.weight = {0.5, 3};
    const Objective weighted = batch.Compute({.kind = kind});
    ExpectAllNear(weighted.slope, {0.5 * plain.slope[0], 3 * plain.slope[1]});
    ExpectAllNear(weighted.value, {0.5 * plain.value[0], 3 * plain.value[1]});
  }
}

// min(r, 5), detached: tokens beyond the ceiling keep a slope, unlike with clip.
TEST(PolicyObjectiveTest, CispoCapsTheDetachedRatioAndDropsNothing) {
  const Objective o = Ratios({{8, 1}, {8, -1}, {0.2, -1}}).Compute({.kind = ObjectiveKind::kCispo});
  ExpectAllNear(o.slope, {-5, 5, 0.2});
  EXPECT_NEAR(o.value[0], -5 * std::log(0.8), 1e-12);
  EXPECT_EQ(o.num_clip_high, 2);
}

// Completion of r = 2 and 1/4: W = 1/2 for A < 0, 1 for A >= 0. Of r = 2 and 2: min(4, 1).
TEST(PolicyObjectiveTest, ToprTapersNegativeCompletionsByTheProductOfTheirRatios) {
  ObjectiveBatch batch = Ratios({{2, -1}, {0.25, -1}, {2, 1}, {0.25, 1}, {2, -1}, {2, -1}});
  batch.completion = {0, 0, 1, 1, 2, 2};
  const Objective o = batch.Compute({.kind = ObjectiveKind::kTopr});
  ExpectAllNear(o.slope, {0.5, 0.5, -1, -1, 1, 1});
  EXPECT_EQ(o.num_clip_high, 2);
}

// Completion of r = 2 and 1/2: s = 1. Of r = 1.21 and 1: s = 1.1.
TEST(PolicyObjectiveTest, GspoClipsTheGeometricMeanOfACompletion) {
  ObjectiveBatch batch = Ratios({{2, 1}, {0.5, 1}, {1.21, 1}, {1, 1}, {1.21, -1}, {1, -1}});
  batch.completion = {0, 0, 1, 1, 2, 2};
  const Objective o = batch.Compute({.kind = ObjectiveKind::kGspo});
  ExpectAllNear(o.slope, {-1, -1, 0, 0, 1.1, 1.1});
  ExpectAllNear(o.value, {-1, -1, -1.0004, -1.0004, 1.1, 1.1});
  EXPECT_EQ(o.num_clip_high, 2);
}

// sigmoid(0) = 1/2; sigmoid(log 3) = 3/4 at r - 1 = log 3.
TEST(PolicyObjectiveTest, SapoWeighsByASoftGateOfTheRatio) {
  const double r = 1 + std::log(3.0);
  const Objective o = Ratios({{1, 1}, {r, 1}}).Compute({.kind = ObjectiveKind::kSapo});
  ExpectAllNear(o.value, {-2, -3});
  ExpectAllNear(o.slope, {-1, -4 * 0.75 * 0.25 * r});
  // tau 2 for A <= 0: 4 / 2 x sigmoid(2 (r - 1)) = 2 x 9/10.
  EXPECT_NEAR(Value(r, -1, {.kind = ObjectiveKind::kSapo, .sapo_tau_negative = 2}), 1.8, 1e-12);
}

// W = 2 x 1 = 2 over the completion: W^2 e^(3 (1 - 2)) = 4 e^-3, W^3 e^(2 (1 - 2)) = 8 e^-2.
TEST(PolicyObjectiveTest, VespoWeighsCompletionsByAGammaShapedFunctionOfTheirProduct) {
  ObjectiveBatch batch = Ratios({{2, 1}, {1, 1}, {2, -1}, {1, -1}});
  batch.completion = {0, 0, 1, 1};
  const double positive = 4 * std::exp(-3.0), negative = 8 * std::exp(-2.0);
  const Objective o = batch.Compute({.kind = ObjectiveKind::kVespo});
  ExpectAllNear(o.slope, {-positive, -positive, negative, negative});
  EXPECT_NEAR(o.value[1], -positive * std::log(0.1), 1e-12);
}

// Squares of log r where a clip could act: 0.01 and 0.09 and 0.25, means 0.01, 0.05, 0.1167.
ObjectiveBatch FourMoments() {
  ObjectiveBatch batch;
  batch.Add(-1, -1.1, 1);
  batch.Add(-1.3, -1, -1);
  batch.Add(-1, -1.5, 1);
  batch.Add(-1, -2, -1);  // r = e, A < 0: no clip would act
  return batch;
}

TEST(PolicyObjectiveTest, M2poDropsTheLargestMomentsUntilTheMeanIsSmall) {
  const ObjectiveBatch batch = FourMoments();
  const auto slopes = [&](double max) {
    return batch.Compute({.kind = ObjectiveKind::kM2po, .m2po_max = max}).slope;
  };
  const double a = -std::exp(0.1), b = std::exp(-0.3), c = -std::exp(0.5), d = std::exp(1.0);
  ExpectAllNear(slopes(0.12), {a, b, c, d});
  ExpectAllNear(slopes(0.06), {a, b, 0, d});
  ExpectAllNear(slopes(0.04), {a, 0, 0, d});
  ExpectAllNear(slopes(0.005), {0, 0, 0, d});
  const Objective o = batch.Compute({.kind = ObjectiveKind::kM2po});
  EXPECT_EQ(o.num_clip_high, 1);
  EXPECT_EQ(o.num_clip_low, 1);
}

// The same squares: capped at tau^2, their mean is the budget. For 0.06, 0.01 + 0.09 + (0.18 - 0.1)
// gives tau^2 = 0.08 < 0.09, so both larger ones are clipped, at tau^2 = (0.18 - 0.01) / 2 = 0.085.
TEST(PolicyObjectiveTest, M2poClipClipsAtTheBoundThatMakesTheCappedMeanTheBudget) {
  const ObjectiveBatch batch = FourMoments();
  const auto compute = [&](double max) {
    return batch.Compute({.kind = ObjectiveKind::kM2poClip, .m2po_max = max});
  };
  const double a = -std::exp(0.1), b = std::exp(-0.3), c = -std::exp(0.5), d = std::exp(1.0);
  ExpectAllNear(compute(0.12).slope, {a, b, c, d});  // 0.35 / 3 is below
  ExpectAllNear(compute(0.08).slope, {a, b, 0, d});  // tau^2 = 0.24 - 0.1
  ExpectAllNear(compute(0.06).slope, {a, 0, 0, d});
  ExpectAllNear(compute(0.009).slope, {0, 0, 0, d});  // all three at tau^2 = 0.009
  ExpectAllNear(compute(0).slope, {0, 0, 0, d});
  const Objective o = compute(0.06);
  const double tau = std::sqrt(0.085);
  ExpectAllNear(o.value, {a, std::exp(-tau), -std::exp(tau), d});
  EXPECT_EQ(o.num_clip_high, 1);
  EXPECT_EQ(o.num_clip_low, 1);
}

// Squares 0.01, 0.09 and 0.25 under a budget of 0.1: the mask keeps the first two, whose mean is
// 0.05; the clip keeps them too, and clips the third at tau^2 = 0.3 - 0.1. Under 0.0501 the mask
// still keeps both, and the clip only the first, at tau^2 = (0.1503 - 0.01) / 2.
TEST(PolicyObjectiveTest, ThePapersMaskAndTheRepositorysClipActOnDifferentTokens) {
  const std::vector<double> squares = {0.25, 0.01, 0.09};
  const auto cutoff = [&](ObjectiveKind kind, double max) {
    return SecondMomentCutoff(squares, {.kind = kind, .m2po_max = max});
  };
  EXPECT_NEAR(cutoff(ObjectiveKind::kM2po, 0.1), 0.17, 1e-12);
  EXPECT_NEAR(cutoff(ObjectiveKind::kM2poClip, 0.1), 0.2, 1e-12);
  EXPECT_NEAR(cutoff(ObjectiveKind::kM2po, 0.0501), 0.17, 1e-12);
  EXPECT_NEAR(cutoff(ObjectiveKind::kM2poClip, 0.0501), 0.07015, 1e-12);
  EXPECT_EQ(cutoff(ObjectiveKind::kM2poClip, 0.2), std::numeric_limits<double>::infinity());
}

TEST(PolicyObjectiveTest, M2poTakesTheCutoffOfALargerBatch) {
  ObjectiveBatch batch;
  batch.Add(-1, -1.1, 1);
  batch.Add(-1, -1.5, 1);
  std::vector<double> squares;
  AppendSecondMoments(batch.Inputs(), squares);
  ExpectAllNear(squares, {0.01, 0.25});
  squares.insert(squares.end(), 9, 0.0001);  // elsewhere: a mean of 0.0237 keeps all
  batch.cutoff = SecondMomentCutoff(squares, {.kind = ObjectiveKind::kM2po});
  ExpectAllNear(batch.Compute({.kind = ObjectiveKind::kM2po}).slope,
                {-std::exp(0.1), -std::exp(0.5)});
  batch.cutoff.reset();
  EXPECT_EQ(batch.Compute({.kind = ObjectiveKind::kM2po}).slope[1], 0)
      << "alone: (0.01 + 0.25) / 2 > 0.04";
}

TEST(PolicyObjectiveTest, EqualMomentsAreDroppedTogetherWhateverTheirOrder) {
  const ObjectiveOptions m2po = {.kind = ObjectiveKind::kM2po, .m2po_max = 0.0451};
  EXPECT_LT(SecondMomentCutoff({0.03, 0.06, 0.06}, m2po), 0.06);
  EXPECT_GT(SecondMomentCutoff({0.03, 0.06, 0.06}, m2po), 0.03);
  for (const ObjectiveKind kind : {ObjectiveKind::kM2po, ObjectiveKind::kM2poClip}) {
    EXPECT_EQ(SecondMomentCutoff({}, {.kind = kind}), std::numeric_limits<double>::infinity());
  }
}

ObjectiveBatch Probabilities(double target, double centre, double advantage) {
  ObjectiveBatch batch;
  batch.Add(std::log(target), std::log(centre), advantage);
  return batch;
}

// A move by 0.2 in probability is masked in the direction of the advantage, and not against it. The
// same ratio is a small move for a rare token.
TEST(PolicyObjectiveTest, DppoMasksByTheMoveInProbabilityInTheAdvantagesWay) {
  const ObjectiveOptions tv = {.kind = ObjectiveKind::kDppoTv};
  EXPECT_EQ(Probabilities(0.6, 0.4, 1).Compute(tv).slope[0], 0);
  EXPECT_EQ(Probabilities(0.6, 0.4, 1).Compute(tv).num_clip_high, 1);
  EXPECT_NEAR(Probabilities(0.6, 0.4, -1).Compute(tv).slope[0], 1.5, 1e-12);
  EXPECT_EQ(Probabilities(0.4, 0.6, -1).Compute(tv).slope[0], 0);
  EXPECT_EQ(Probabilities(0.4, 0.6, -1).Compute(tv).num_clip_low, 1);
  EXPECT_NEAR(Probabilities(0.006, 0.004, 1).Compute(tv).slope[0], -1.5, 1e-12);
  EXPECT_NEAR(Probabilities(0.004, 0.0001, 1).Compute(tv).slope[0], -20, 1e-12) << "ceiling";
}

// KL of (0.4, 0.6) against (0.6, 0.4): 0.4 log(2/3) + 0.6 log(3/2) = 0.0811; against (0.5, 0.5):
// 0.0201.
TEST(PolicyObjectiveTest, DppoMasksByTheKlOfTokenAgainstRest) {
  const ObjectiveOptions kl = {.kind = ObjectiveKind::kDppoKl};
  EXPECT_EQ(Probabilities(0.6, 0.4, 1).Compute(kl).slope[0], 0);
  EXPECT_NEAR(Probabilities(0.5, 0.4, 1).Compute(kl).slope[0], -1.25, 1e-12);
  EXPECT_NEAR(Probabilities(0.6, 0.4, -1).Compute(kl).slope[0], 1.5, 1e-12);
  EXPECT_EQ(Probabilities(0.6, 0.4, 1)
                .Compute({.kind = ObjectiveKind::kDppoKl, .dppo_max_kl = 0.0810})
                .slope[0],
            0);
  EXPECT_NE(Probabilities(0.6, 0.4, 1)
                .Compute({.kind = ObjectiveKind::kDppoKl, .dppo_max_kl = 0.0812})
                .slope[0],
            0);
  // KL of (0.1, 0.9) against (0.3, 0.7) is 0.116, the other way round 0.154.
  EXPECT_NE(Probabilities(0.3, 0.1, 1)
                .Compute({.kind = ObjectiveKind::kDppoKl, .dppo_max_kl = 0.13})
                .slope[0],
            0);
  EXPECT_NEAR(Probabilities(1, 1, 1).Compute(kl).slope[0], -1, 1e-12) << "nothing is left to move";
  EXPECT_EQ(Probabilities(1, 0.5, 1).Compute(kl).slope[0], 0) << "an infinite divergence";
}

// The ratio kinds are functions of the target log-probs, so the slope is their derivative. 3 tokens
// of one completion and 2 of another, with weights that differ within a completion.
class SlopeTest : public ::testing::TestWithParam<ObjectiveKind> {
 protected:
  SlopeTest() {
    batch_.Add(-1.0, -1.1, 1.3, 0, 0.7);
    batch_.Add(-2.0, -1.95, 1.3, 0, 1.9);
    batch_.Add(-0.5, -0.52, 1.3, 0, 1.1);
    batch_.Add(-1.35, -1.2, -0.8, 1, 1.4);
    batch_.Add(-0.7, -0.9, -0.8, 1, 0.6);
    options_.kind = GetParam();
    options_.gspo_clip_low = options_.gspo_clip_high = 0.2;
  }
  double Sum(const ObjectiveBatch& batch) const {
    double sum = 0;
    for (const double value : batch.Compute(options_).value) sum += value;
    return sum;
  }
  ObjectiveBatch batch_;
  ObjectiveOptions options_;
};

TEST_P(SlopeTest, IsTheDerivativeOfTheSumOfValues) {
  const Objective o = batch_.Compute(options_);
  constexpr double kStep = 1e-6;
  for (size_t t = 0; t < 5; ++t) {
    ObjectiveBatch up = batch_, down = batch_;
    up.target[t] += kStep;
    down.target[t] -= kStep;
    EXPECT_NEAR(o.slope[t], (Sum(up) - Sum(down)) / (2 * kStep), 1e-8) << "token " << t;
    EXPECT_NE(o.slope[t], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(RatioKinds, SlopeTest,
                         ::testing::Values(ObjectiveKind::kClip, ObjectiveKind::kSapo,
                                           ObjectiveKind::kGspo, ObjectiveKind::kM2po,
                                           ObjectiveKind::kM2poClip));

// The detached kinds are linear in log pi_target, with the factor in the value as their slope.
class DetachedSlopeTest : public SlopeTest {};

TEST_P(DetachedSlopeTest, IsTheFactorOfTheTargetLogprobInTheValue) {
  const Objective o = batch_.Compute(options_);
  for (size_t t = 0; t < 5; ++t) {
    EXPECT_NEAR(o.value[t], o.slope[t] * batch_.target[t], 1e-12);
    EXPECT_NE(o.slope[t], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(DetachedKinds, DetachedSlopeTest,
                         ::testing::Values(ObjectiveKind::kCispo, ObjectiveKind::kTopr,
                                           ObjectiveKind::kVespo, ObjectiveKind::kDppoTv,
                                           ObjectiveKind::kDppoKl));

TEST(ObjectiveOptionsTest, RefusesWhatWouldWeighATokenTwiceOrDoNothing) {
  const auto refuses = [](const CorrectionOptions& correction, const ObjectiveOptions& objective,
                          const char* message) {
    EXPECT_THAT(CheckOptions(correction, objective),
                FailsWith(absl::StatusCode::kInvalidArgument, message));
  };
  refuses({}, {.kind = ObjectiveKind::kVespo}, "set correction.mode bypass");
  refuses({}, {.kind = ObjectiveKind::kTopr}, "set correction.mode bypass");
  refuses({.mode = CorrectionMode::kMeasureOnly}, {.kind = ObjectiveKind::kM2po}, "bypass");
  refuses({}, {.kind = ObjectiveKind::kM2poClip}, "set correction.mode bypass");
  refuses({}, {.dual_clip = 1}, "loss.dual_clip is 1; it must be over 1");
  refuses({}, {.kind = ObjectiveKind::kCispo, .dual_clip = 3}, "bounds loss.kind clip only");
  refuses({.negative_only = true}, {}, "nothing to spare");
  refuses({}, {.normalisation = Normalisation::kConstant}, "constant_length");
  EXPECT_TRUE(
      CheckOptions({.mode = CorrectionMode::kBypass}, {.kind = ObjectiveKind::kVespo}).ok());
}

}  // namespace
}  // namespace tandem::offpolicy
