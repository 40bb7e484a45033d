#include "common/offpolicy/value_targets.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::offpolicy {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void ExpectTargets(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t t = 0; t < want.size(); ++t) EXPECT_NEAR(got[t], want[t], 1e-12) << "token " << t;
}

// Three tokens; the reward comes with the last one.
const std::vector<double> kRewards = {0, 0, 1};
const std::vector<double> kValues = {0.5, 0.25, 0.75};

TEST(Gae, IsTheDiscountedSumOfTemporalDifferencesWorkedByHand) {
  // delta = 0.25 g - 0.5, 0.75 g - 0.25, 1 - 0.75 with g = 0.5: -0.375, 0.125, 0.25
  // A_2 = 0.25; A_1 = 0.125 + 0.5 * 0.5 * 0.25 = 0.1875; A_0 = -0.375 + 0.25 * 0.1875 = -0.328125
  const ValueTargets got =
      ComputeValueTargets({kRewards, kValues}, ValueEstimator::kGae, {.gamma = 0.5, .lambda = 0.5});
  ExpectTargets(got.advantages, {-0.328125, 0.1875, 0.25});
  ExpectTargets(got.targets, {0.171875, 0.4375, 1});
}

TEST(ValueAtTInsteadOfTPlus1, WouldMoveTheAdvantageOfAnInnerToken) {
  // With lambda 0 the advantage of token 0 is r_0 + v_1 - v_0, and reads the next state's value.
  const ValueTargets got =
      ComputeValueTargets({kRewards, kValues}, ValueEstimator::kGae, {.lambda = 0});
  ExpectTargets(got.advantages, {-0.25, 0.5, 0.25});
}

TEST(Gae, WithLambda1IsTheReturnLessTheValue) {
  const std::vector<double> rewards = {0.5, -1, 2};
  const ValueTargets got =
      ComputeValueTargets({rewards, kValues}, ValueEstimator::kGae, {.gamma = 0.9, .lambda = 1});
  const std::vector<double> returns = ReturnsToGo(rewards, 0.9);
  ExpectTargets(returns, {0.5 + 0.9 * (-1 + 0.9 * 2), -1 + 0.9 * 2, 2});
  ExpectTargets(got.targets, returns);
  for (size_t t = 0; t < 3; ++t) EXPECT_NEAR(got.advantages[t], returns[t] - kValues[t], 1e-12);
}

TEST(Gae, BootstrapsATruncatedCompletionWithTheValueOfItsLastState) {
  const std::vector<double> none = {0, 0, 0};
  const ValueTargets got =
      ComputeValueTargets({none, kValues, /*bootstrap=*/0.8}, ValueEstimator::kGae, {.lambda = 1});
  ExpectTargets(got.targets, {0.8, 0.8, 0.8});
  const ValueTargets ended =
      ComputeValueTargets({none, kValues}, ValueEstimator::kGae, {.lambda = 1});
  ExpectTargets(ended.targets, {0, 0, 0});
}

TEST(Gae, OfOneTokenIsItsRewardLessItsValue) {
  const std::vector<double> reward = {1}, value = {0.25};
  const ValueTargets got = ComputeValueTargets({reward, value}, ValueEstimator::kGae, {});
  ExpectTargets(got.advantages, {0.75});
  ExpectTargets(got.targets, {1});
}

TEST(Gae, OfNoTokensIsEmpty) {
  const ValueTargets got = ComputeValueTargets({}, ValueEstimator::kGae, {});
  EXPECT_TRUE(got.advantages.empty());
  EXPECT_TRUE(got.targets.empty());
}

TEST(DecoupledGae, GivesTheCriticALambdaOfItsOwn) {
  const ValueTargets got = ComputeValueTargets({kRewards, kValues}, ValueEstimator::kGae,
                                               {.lambda = 0, .critic_lambda = 1});
  ExpectTargets(got.advantages, {-0.25, 0.5, 0.25});
  ExpectTargets(got.targets, {1, 1, 1});
}

TEST(LengthAdaptiveGae, HasLambdaOneLessOneOverAlphaLength) {
  // alpha 0.5, T = 4: lambda = 1 - 1 / 2
  const std::vector<double> rewards = {0, 0, 0, 1}, values = {0, 0, 0, 0};
  const ValueTargets got = ComputeValueTargets({rewards, values}, ValueEstimator::kGae,
                                               {.lambda = 0.95, .length_adaptive_alpha = 0.5});
  ExpectTargets(got.advantages, {0.125, 0.25, 0.5, 1});
  // alpha 0.05, T = 4: 1 - 5 < 0 counts as 0
  const ValueTargets short_one =
      ComputeValueTargets({rewards, values}, ValueEstimator::kGae, {.length_adaptive_alpha = 0.05});
  ExpectTargets(short_one.advantages, {0, 0, 0, 1});
}

TEST(Vtrace, TruncatesRatiosAsWorkedByHand) {
  // ratios 2, 0.5, 4 with max_rho 2 and max_c 1: rho = 2, 0.5, 2; c = 1, 0.5, 1
  // delta = -0.25, 0.5, 0.25
  // target_2 - v_2 = 0.5; target_1 - v_1 = 0.25 + 0.5 * 0.5 = 0.5; target_0 - v_0 = -0.5 + 0.5 = 0
  const std::vector<double> log_ratios = {std::log(2), std::log(0.5), std::log(4)};
  const ValueTargets got =
      ComputeValueTargets({kRewards, kValues, 0, log_ratios}, ValueEstimator::kVtrace,
                          {.lambda = 1, .max_rho = 2, .max_c = 1});
  ExpectTargets(got.targets, {0.5, 0.75, 1.25});
  // A = r + target of the next state - v
  ExpectTargets(got.advantages, {0.75 - 0.5, 1.25 - 0.25, 1 - 0.75});
}

TEST(Vtrace, OnPolicyWithLambda1HasTheReturnsAsTargets) {
  const std::vector<double> log_ratios = {0, 0, 0};
  const ValueTargets got = ComputeValueTargets({kRewards, kValues, 0, log_ratios},
                                               ValueEstimator::kVtrace, {.lambda = 1});
  ExpectTargets(got.targets, {1, 1, 1});
}

TEST(Retrace, OnPolicyIsGae) {
  const std::vector<double> log_ratios = {0, 0, 0};
  const ValueTargetOptions options = {.gamma = 0.9, .lambda = 0.7};
  const ValueTargets retrace =
      ComputeValueTargets({kRewards, kValues, 0.3, log_ratios}, ValueEstimator::kRetrace, options);
  const ValueTargets gae =
      ComputeValueTargets({kRewards, kValues, 0.3}, ValueEstimator::kGae, options);
  ExpectTargets(retrace.advantages, gae.advantages);
  ExpectTargets(retrace.targets, gae.targets);
}

TEST(Retrace, CutsTheTraceAtTheNextTokensRatioAndNotAtItsOwn) {
  // ratios 4, 0.5, 0: c = 1, 0.5, 0; delta = -0.25, 0.5, 0.25
  // A_2 = 0.25; A_1 = 0.5 + 0 * A_2; A_0 = -0.25 + 0.5 * 0.5 = 0
  const std::vector<double> log_ratios = {std::log(4), std::log(0.5),
                                          -std::numeric_limits<double>::infinity()};
  const ValueTargets got = ComputeValueTargets({kRewards, kValues, 0, log_ratios},
                                               ValueEstimator::kRetrace, {.lambda = 1});
  ExpectTargets(got.advantages, {0, 0.5, 0.25});
  ExpectTargets(got.targets, {0.5, 0.25 + 0.5 * 0.5, 0.75});
}

TEST(VtraceAndRetrace, HaveEqualTargetsWithLambda1AndEqualTruncations) {
  const std::vector<double> log_ratios = {0.3, -0.7, 1.1};
  const ValueTargetOptions options = {.gamma = 0.8, .lambda = 1, .max_rho = 1.5, .max_c = 1.5};
  const TrajectoryInputs inputs = {kRewards, kValues, 0.4, log_ratios};
  ExpectTargets(ComputeValueTargets(inputs, ValueEstimator::kVtrace, options).targets,
                ComputeValueTargets(inputs, ValueEstimator::kRetrace, options).targets);
}

TEST(Vtrace, LearnsNothingThroughATokenWhoseRatioIsNotFinite) {
  const std::vector<double> log_ratios = {0, kNaN, 0};
  const ValueTargets got = ComputeValueTargets({kRewards, kValues, 0, log_ratios},
                                               ValueEstimator::kVtrace, {.lambda = 1});
  ExpectTargets(got.targets, {0.25, 0.25, 1});
}

// The fixed point of V-trace's operator is the value of the policy that is proportional to
// min(max_rho mu, pi) (Espeholt et al. 2018, section 4.1). All completions of two tokens out of a
// vocabulary of two, with the reward of each, are enumerated.
class Enumeration : public ::testing::Test {
 protected:
  using Pair = std::array<double, 2>;
  // By state: 0 before the first token, 1 and 2 after token 0 or 1.
  static constexpr std::array<Pair, 3> kMu = {Pair{0.7, 0.3}, Pair{0.2, 0.8}, Pair{0.5, 0.5}};
  static constexpr std::array<Pair, 3> kPi = {Pair{0.4, 0.6}, Pair{0.6, 0.4}, Pair{0.1, 0.9}};
  static constexpr std::array<Pair, 2> kReward = {Pair{1, -0.5}, Pair{0.25, 2}};

  static Pair Truncated(size_t state, double max_rho) {
    Pair p;
    for (size_t a = 0; a < 2; ++a) p[a] = std::min(max_rho * kMu[state][a], kPi[state][a]);
    const double sum = p[0] + p[1];
    return {p[0] / sum, p[1] / sum};
  }

  // One application of the operator to the values of the three states.
  static std::array<double, 3> Expected(const std::array<double, 3>& v, ValueEstimator estimator,
                                        const ValueTargetOptions& options) {
    std::array<double, 3> sums = {0, 0, 0};
    for (size_t a = 0; a < 2; ++a) {
      for (size_t b = 0; b < 2; ++b) {
        const std::vector<double> rewards = {0, kReward[a][b]}, values = {v[0], v[1 + a]};
        const std::vector<double> log_ratios = {std::log(kPi[0][a] / kMu[0][a]),
                                                std::log(kPi[1 + a][b] / kMu[1 + a][b])};
        const ValueTargets got =
            ComputeValueTargets({rewards, values, 0, log_ratios}, estimator, options);
        sums[0] += kMu[0][a] * kMu[1 + a][b] * got.targets[0];
        sums[1 + a] += kMu[1 + a][b] * got.targets[1];
      }
    }
    return sums;
  }

  static void ExpectFixedPoint(ValueEstimator estimator, const ValueTargetOptions& options) {
    std::array<double, 3> v = {3, -2, 5};
    for (int i = 0; i < 400; ++i) v = Expected(v, estimator, options);
    const Pair first = Truncated(0, options.max_rho);
    std::array<double, 3> want = {0, 0, 0};
    for (size_t a = 0; a < 2; ++a) {
      const Pair second = Truncated(1 + a, options.max_rho);
      want[1 + a] = second[0] * kReward[a][0] + second[1] * kReward[a][1];
      want[0] += first[a] * want[1 + a];
    }
    for (size_t s = 0; s < 3; ++s) EXPECT_NEAR(v[s], want[s], 1e-9) << "state " << s;
  }
};

TEST_F(Enumeration, VtracesFixedPointIsTheValueOfTheTruncatedPolicy) {
  for (const double max_rho : {0.5, 1.0, 1.2}) {
    ExpectFixedPoint(ValueEstimator::kVtrace, {.lambda = 1, .max_rho = max_rho, .max_c = 0.5});
    ExpectFixedPoint(ValueEstimator::kVtrace, {.lambda = 0.3, .max_rho = max_rho, .max_c = 0.5});
  }
}

TEST_F(Enumeration, RetracesFixedPointIsThatOfItsOwnTruncation) {
  for (const double lambda : {0.3, 1.0}) {
    ExpectFixedPoint(ValueEstimator::kRetrace, {.lambda = lambda, .max_rho = 1, .max_c = 1});
  }
}

TEST_F(Enumeration, WithoutTruncationTheFixedPointIsTheValueOfTheTargetPolicy) {
  std::array<double, 3> want = {0, 0, 0};
  for (size_t a = 0; a < 2; ++a) {
    want[1 + a] = kPi[1 + a][0] * kReward[a][0] + kPi[1 + a][1] * kReward[a][1];
    want[0] += kPi[0][a] * want[1 + a];
  }
  for (const auto estimator : {ValueEstimator::kVtrace, ValueEstimator::kRetrace}) {
    std::array<double, 3> v = {0, 0, 0};
    for (int i = 0; i < 400; ++i)
      v = Expected(v, estimator, {.lambda = 1, .max_rho = 100, .max_c = 100});
    for (size_t s = 0; s < 3; ++s) EXPECT_NEAR(v[s], want[s], 1e-9) << "state " << s;
  }
}

TEST(ExplainedVariance, Is1ForTheTargetsThemselvesAnd0ForTheirMean) {
  const std::vector<double> targets = {1, 2, 3}, mean = {2, 2, 2}, half = {1.5, 2, 2.5};
  EXPECT_DOUBLE_EQ(ExplainedVariance(targets, targets), 1);
  EXPECT_DOUBLE_EQ(ExplainedVariance(mean, targets), 0);
  EXPECT_DOUBLE_EQ(ExplainedVariance(half, targets), 0.75);
  EXPECT_TRUE(std::isnan(ExplainedVariance(targets, mean)));
}

TEST(ValueTargetOptions, MayNotTraceFurtherThanTheyCorrect) {
  EXPECT_THAT(CheckOptions(ValueTargetOptions{.max_rho = 1, .max_c = 1}), IsOk());
  EXPECT_THAT(CheckOptions(ValueTargetOptions{.max_rho = 1, .max_c = 2}),
              FailsWith(absl::StatusCode::kInvalidArgument, "advantage.max_c is 2"));
}

}  // namespace
}  // namespace tandem::offpolicy
