#include "drift_lab/phase/toy/token_weights.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tandem::drift {
namespace {

// Two completions of two tokens. The first (advantage 1) has w = 4 and 1/2, W = 2, geometric sqrt
// 2; the second (advantage -1) has w = .9 and .55, W = .495, geometric .70.
TokenWeights Weigh(Method method) {
  const float behaviour[] = {-1, -1, -1, -1};
  const float target[] = {-1 + std::log(4.0f), -1 + std::log(0.55f), -1 + std::log(0.9f),
                          -1 + std::log(0.55f)};
  const int32_t sequence[] = {0, 0, 1, 1};
  const float advantages[] = {1, 1, -1, -1};
  return ComputeWeights(method, target, behaviour, sequence, advantages);
}

void ExpectWeights(Method method, const std::vector<float>& expected) {
  const TokenWeights weights = Weigh(method);
  for (size_t t = 0; t < expected.size(); ++t) {
    EXPECT_NEAR(weights.weight[t], expected[t], 1e-6) << MethodName(method) << ", token " << t;
    EXPECT_EQ(weights.kept[t], expected[t] != 0) << MethodName(method) << ", token " << t;
  }
}

TEST(ToyWeightsTest, NoneCountsEveryTokenOnce) { ExpectWeights(Method::kNone, {1, 1, 1, 1}); }

TEST(ToyWeightsTest, TokenTisCutsTheRatioAtTwo) {
  ExpectWeights(Method::kTokenTis, {2, 0.55, 0.9, 0.55});
}

TEST(ToyWeightsTest, SequenceTisCutsTheProduct) {
  ExpectWeights(Method::kSequenceTis, {2, 2, 0.495, 0.495});
  const float zero[] = {0, 0}, up[] = {std::log(3.0f), std::log(3.0f)};
  const int32_t sequence[] = {7, 7};
  EXPECT_EQ(ComputeWeights(Method::kSequenceTis, up, zero, sequence, up).weight[0], 2);  // of 9
}

TEST(ToyWeightsTest, SequenceMisDropsAProductOutOfItsWindow) {
  const float behaviour[] = {0, 0}, target[] = {std::log(1.9f), std::log(2.1f)};
  const int32_t sequence[] = {0, 1};
  const float advantages[] = {1, 1};
  const TokenWeights weights =
      ComputeWeights(Method::kSequenceMis, target, behaviour, sequence, advantages);
  EXPECT_NEAR(weights.weight[0], 1.9, 1e-6);
  EXPECT_EQ(weights.weight[1], 0);
  EXPECT_EQ(weights.kept[1], 0);
  EXPECT_EQ(Weigh(Method::kSequenceMis).kept[3], 0);  // .495
}

TEST(ToyWeightsTest, IcePopKeepsTokensOfItsWindowWithTheirRatio) {
  ExpectWeights(Method::kIcePop, {4, 0.55, 0.9, 0.55});
  const float behaviour[] = {0, 0}, target[] = {std::log(0.49f), std::log(5.1f)};
  const int32_t sequence[] = {0, 1};
  const float advantages[] = {1, 1};
  const TokenWeights weights =
      ComputeWeights(Method::kIcePop, target, behaviour, sequence, advantages);
  EXPECT_EQ(weights.kept, (std::vector<uint8_t>{0, 0}));
}

TEST(ToyWeightsTest, ToprWeighsOnlyWhatWasWorseThanItsGroup) {
  ExpectWeights(Method::kTopr, {1, 1, 0.495, 0.495});
}

// The clip acts where moving on would be rewarded: up for advantage > 0, down for advantage < 0.
TEST(ToyWeightsTest, BypassClipDropsWhereTheClipOfPpoActs) {
  ExpectWeights(Method::kBypassClip, {0, 0.55, 0.9, 0});
}

TEST(ToyWeightsTest, GeometricMaskKeepsCompletionsNearOneUnweighted) {
  ExpectWeights(Method::kGeometricMask, {0, 0, 0, 0});
  const float behaviour[] = {0, 0}, target[] = {std::log(4.0f), std::log(0.28f)};
  const int32_t sequence[] = {0, 0};
  const float advantages[] = {1, 1};  // W = 1.12, its root 1.06
  EXPECT_EQ(ComputeWeights(Method::kGeometricMask, target, behaviour, sequence, advantages).weight,
            (std::vector<float>{1, 1}));
}

TEST(ToyWeightsTest, SignMaskDropsOnlyNegativeAdvantages) {
  ExpectWeights(Method::kSignMask, {2, 2, 0, 0});
}

TEST(ToyWeightsTest, EveryMethodIsFoundByItsName) {
  for (const Method method : AllMethods()) {
    EXPECT_EQ(MethodNamed(MethodName(method)), method);
  }
  EXPECT_FALSE(MethodNamed("tis").has_value());
}

TEST(ToyWeightsTest, EqualPoliciesGiveWeightOneWhateverTheMethod) {
  const float logprobs[] = {-0.5, -3, -7};
  const int32_t sequence[] = {0, 0, 1};
  const float advantages[] = {1, 1, -1};
  for (const Method method : AllMethods()) {
    EXPECT_EQ(ComputeWeights(method, logprobs, logprobs, sequence, advantages).weight,
              (std::vector<float>{1, 1, 1}))
        << MethodName(method);
  }
}

}  // namespace
}  // namespace tandem::drift
