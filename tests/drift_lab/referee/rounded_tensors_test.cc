// Roundings of weights: exact on numbers that the formats hold, and as far off as their steps.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "drift_lab/referee/forward/k_quants.h"
#include "drift_lab/referee/forward/referee_tensors.h"

namespace tandem::drift {
namespace {

TEST(RoundedWeightsTest, OneScalePerTensorHoldsMultiplesOfTheLargestOver127) {
  const at::Tensor weights = at::tensor({127.0F, -64.0F, 3.0F, 0.4F}).reshape({2, 2});
  const at::Tensor rounded = RoundedWeights(weights, WeightFormat::kInt8Tensor);
  EXPECT_TRUE(at::equal(rounded, at::tensor({127.0F, -64.0F, 3.0F, 0.0F}).reshape({2, 2})));
}

TEST(RoundedWeightsTest, EveryRowHasItsScaleWithOneScalePerChannel) {
  const at::Tensor weights = at::tensor({127.0F, 0.4F, 1.27F, 0.4F}).reshape({2, 2});
  const at::Tensor rounded = RoundedWeights(weights, WeightFormat::kInt8Channel);
  EXPECT_TRUE(at::allclose(rounded, at::tensor({127.0F, 0.0F, 1.27F, 0.40F}).reshape({2, 2})));
}

TEST(RoundedWeightsTest, AZeroPointHoldsSmallestAndLargest) {
  // Levels are 1 apart between -5 and 10; halves go to the even level.
  const at::Tensor weights = at::tensor({-5.0F, 10.0F, 2.4F, 0.0F}).repeat({32}).reshape({1, 128});
  const at::Tensor rounded = RoundedWeights(weights, WeightFormat::kAsym4Group128);
  const at::Tensor wanted = at::tensor({-5.0F, 10.0F, 2.0F, 0.0F}).repeat({32}).reshape({1, 128});
  EXPECT_TRUE(at::allclose(rounded, wanted));
}

TEST(RoundedWeightsTest, Fp8HasThreeBitsAfterThePoint) {
  const at::Tensor rounded = RoundedToE4m3(at::tensor({1.0F, 1.07F, 300.0F, 1000.0F}));
  EXPECT_TRUE(at::equal(rounded, at::tensor({1.0F, 1.125F, 288.0F, 448.0F})));
}

TEST(KQuantsTest, NumbersOnTheGridOfQ4KStay) {
  // Scale 1 and minimum 5 in every block of 32: levels 0 to 15 are -5 to 10. Their units, 1 / 63 and
  // 5 / 63 in fp16, are right to 2^-12, and a weight is at most 15 scales and a minimum of 5.
  constexpr double kUnitsInFp16 = (15 + 5) / 4096.0;
  std::array<float, kSuperBlock> weights{};
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 16) - 5;
  std::array<float, kSuperBlock> rounded = weights;
  RoundToQ4K(rounded);
  for (size_t i = 0; i < weights.size(); ++i)
    EXPECT_NEAR(rounded[i], weights[i], kUnitsInFp16) << i;
}

TEST(KQuantsTest, NumbersOnTheGridOfQ6KStay) {
  std::array<float, kSuperBlock> weights{};
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>((i * 7) % 64) - 32;
  // Where the largest magnitude of a block is on the level -32, its scale is 1.
  for (size_t i = 0; i < weights.size(); i += 16) weights[i] = -32;
  std::array<float, kSuperBlock> rounded = weights;
  RoundToQ6K(rounded);
  for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(rounded[i], weights[i]) << i;
}

TEST(KQuantsTest, ZerosStayZeros) {
  std::array<float, kSuperBlock> weights{};
  RoundToQ4K(weights);
  RoundToQ6K(weights);
  for (const float weight : weights) EXPECT_EQ(weight, 0);
}

}  // namespace
}  // namespace tandem::drift
