#include "trainer/advantages/group_advantages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tandem::trainer {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::FloatNear;

std::vector<float> Advantages(std::vector<double> rewards, const AdvantageOptions& options = {}) {
  return ComputeAdvantages({.rewards = std::move(rewards)}, options);
}

AdvantageOptions Exact(StdConvention convention) {
  return {.std_convention = convention, .eps = 0};
}

TEST(Bug01NoEpsInStd, EqualRewardsGiveExactlyZeroEvenWithoutEps) {
  // 0.1 + 0.1 + 0.1 is not 3 * 0.1 in floating point: the mean must not leave a rest over 0.
  EXPECT_THAT(Advantages({0.1, 0.1, 0.1}, Exact(StdConvention::kSample)), Each(FloatEq(0)));
  EXPECT_THAT(Advantages({0.7, 0.7}, {.kind = AdvantageKind::kLeaveOneOut}), Each(FloatEq(0)));
}

TEST(Bug02GroupOfOne, GivesZeroUnderEveryKindAndConvention) {
  for (const AdvantageKind kind :
       {AdvantageKind::kGroupNorm, AdvantageKind::kMeanOnly, AdvantageKind::kLeaveOneOut}) {
    for (const StdConvention convention : {StdConvention::kSample, StdConvention::kPopulation}) {
      EXPECT_THAT(Advantages({3.5}, {.kind = kind, .std_convention = convention, .eps = 0}),
                  ElementsAre(0));
    }
  }
  EXPECT_TRUE(Advantages({}).empty());
}

TEST(Bug03StdConvention, TwoMembersWithOneSuccess) {
  // mean 1/2; sample std sqrt(2 * 1/4 / 1) = 0.7071, population std sqrt(2 * 1/4 / 2) = 1/2.
  EXPECT_THAT(Advantages({1, 0}, Exact(StdConvention::kSample)),
              ElementsAre(FloatNear(0.70711f, 1e-5f), FloatNear(-0.70711f, 1e-5f)));
  EXPECT_THAT(Advantages({1, 0}, Exact(StdConvention::kPopulation)), ElementsAre(1, -1));
}

TEST(Bug03StdConvention, EightMembersWithOneSuccess) {
  // mean 1/8; squares 49/64 + 7/64 = 7/8; sample std sqrt(1/8), population std sqrt(7)/8.
  const std::vector<double> rewards = {1, 0, 0, 0, 0, 0, 0, 0};
  EXPECT_NEAR(Advantages(rewards, Exact(StdConvention::kSample))[0], 0.875 / std::sqrt(0.125),
              1e-6);
  EXPECT_NEAR(Advantages(rewards, Exact(StdConvention::kSample))[0], 2.4749, 1e-4);
  EXPECT_NEAR(Advantages(rewards, Exact(StdConvention::kPopulation))[0], 2.6458, 1e-4);
}

TEST(Bug03StdConvention, DefaultIsTheSampleStdPlusOneTenThousandth) {
  EXPECT_NEAR(Advantages({1, 0})[0], 0.5 / (std::sqrt(0.5) + 1e-4), 1e-7);
}

TEST(Bug04ZeroVarianceGroups, AreRecognised) {
  EXPECT_TRUE(AllEqual(std::vector<double>{0.2, 0.2, 0.2}));
  EXPECT_TRUE(AllEqual(std::vector<double>{1}));
  EXPECT_TRUE(AllEqual(std::vector<double>{}));
  EXPECT_FALSE(AllEqual(std::vector<double>{0, 0, 1}));
}

TEST(Bug05WrongAxis, EachGroupIsItsOwnBaseline) {
  EXPECT_EQ(Advantages({0, 1}), Advantages({10, 11}));
}

TEST(Bug05WrongAxis, PermutingMembersPermutesAdvantages) {
  const std::vector<float> straight = Advantages({0, 1, 5});
  EXPECT_THAT(Advantages({5, 0, 1}), ElementsAre(straight[2], straight[0], straight[1]));
}

TEST(Bug06GradientThroughAdvantages, AdvantagesArePlainNumbersThatRewardsAloneDecide) {
  EXPECT_EQ(Advantages({1, 2, 4}), Advantages({1, 2, 4}));
}

TEST(Bug18StdDivision, OnlyGroupNormDividesByTheStandardDeviation) {
  // (0, 4): sample std sqrt(8). An easy question and a hard one weigh the same without the
  // division.
  EXPECT_THAT(Advantages({0, 4}, {.kind = AdvantageKind::kMeanOnly}), ElementsAre(-2, 2));
  EXPECT_THAT(Advantages({0, 4}, {.kind = AdvantageKind::kLeaveOneOut}), ElementsAre(-4, 4));
  EXPECT_THAT(Advantages({0, 4}, Exact(StdConvention::kSample)),
              ElementsAre(FloatEq(-2 / std::sqrt(8.0f)), FloatEq(2 / std::sqrt(8.0f))));
}

TEST(Advantages, MeanOnlySubtractsTheMean) {
  EXPECT_THAT(Advantages({1, 2, 6}, {.kind = AdvantageKind::kMeanOnly}), ElementsAre(-2, -1, 3));
}

TEST(Advantages, LeaveOneOutSubtractsTheMeanOfTheOthers) {
  // 1 - (2+6)/2, 2 - (1+6)/2, 6 - (1+2)/2
  EXPECT_THAT(Advantages({1, 2, 6}, {.kind = AdvantageKind::kLeaveOneOut}),
              ElementsAre(FloatEq(-3), FloatEq(-1.5f), FloatEq(4.5f)));
}

// Advantages with centred costs taken off, as SetBatchAdvantages does with kl_place reward.
std::vector<float> ChargedAdvantages(const std::vector<double>& rewards,
                                     const std::vector<double>& costs,
                                     const AdvantageOptions& options) {
  std::vector<float> advantages = Advantages(rewards, options);
  const std::vector<float> charges = CentredCosts(costs, options.kind);
  for (size_t i = 0; i < advantages.size(); ++i) advantages[i] -= charges[i];
  return advantages;
}

// Rewards 1 and 0: (R - 1/2) / 0.7071; costs 0.3 and 0.1 are 0.1 above and below their mean.
TEST(ChargedAdvantages, AreOfNormalisedRewardsLessCentredCosts) {
  const std::vector<double> rewards = {1, 0}, costs = {0.3, 0.1};
  EXPECT_THAT(ChargedAdvantages(rewards, costs, Exact(StdConvention::kSample)),
              ElementsAre(FloatNear(0.60711f, 1e-5f), FloatNear(-0.60711f, 1e-5f)));
  EXPECT_THAT(ChargedAdvantages(rewards, costs, {.kind = AdvantageKind::kMeanOnly}),
              ElementsAre(FloatNear(0.4f, 1e-6f), FloatNear(-0.4f, 1e-6f)));
  EXPECT_THAT(ChargedAdvantages(rewards, costs, {.kind = AdvantageKind::kLeaveOneOut}),
              ElementsAre(FloatNear(0.8f, 1e-6f), FloatNear(-0.8f, 1e-6f)));
  EXPECT_THAT(ChargedAdvantages({{1, 0}}, {{0.2, 0.2}}, Exact(StdConvention::kPopulation)),
              ElementsAre(1, -1))
      << "equal costs say nothing";
  EXPECT_THAT(ChargedAdvantages({{3}}, {{0.2}}, {}), ElementsAre(0)) << "nobody to compare with";
}

// All groups of two draws from three actions, rewards equal, costs beta log(p / q): the expected
// gradient is that of -beta KL(p || q), by centring on the mean of both (n - 1) / n of it.
TEST(ChargedAdvantages, OfEqualRewardsHaveTheGradientOfTheKl) {
  const std::vector<double> p = {0.5, 0.3, 0.2}, q = {0.2, 0.3, 0.5};
  constexpr double kBeta = 0.05;
  double kl = 0;
  std::vector<double> costs;
  for (size_t a = 0; a < 3; ++a) {
    costs.push_back(kBeta * std::log(p[a] / q[a]));
    kl += p[a] * std::log(p[a] / q[a]);
  }
  const auto expected = [&](AdvantageKind kind, size_t logit) {
    double sum = 0;
    for (size_t a = 0; a < 3; ++a) {
      for (size_t b = 0; b < 3; ++b) {
        const std::vector<double> drawn = {costs[a], costs[b]};
        const auto advantages = ChargedAdvantages({{1, 1}}, drawn, {.kind = kind});
        const double scores[] = {(a == logit) - p[logit], (b == logit) - p[logit]};
        sum += p[a] * p[b] * (advantages[0] * scores[0] + advantages[1] * scores[1]) / 2;
      }
    }
    return sum;
  };
  for (size_t logit = 0; logit < 3; ++logit) {
    const double gradient = p[logit] * (std::log(p[logit] / q[logit]) - kl);
    EXPECT_NEAR(expected(AdvantageKind::kLeaveOneOut, logit), -kBeta * gradient, 1e-8);
    EXPECT_NEAR(expected(AdvantageKind::kMeanOnly, logit), -kBeta * gradient / 2, 1e-8);
    EXPECT_NEAR(expected(AdvantageKind::kGroupNorm, logit), -kBeta * gradient / 2, 1e-8);
  }
}

}  // namespace
}  // namespace tandem::trainer
