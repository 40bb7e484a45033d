#include "trainer/critic/value_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tandem::trainer {
namespace {

at::Tensor Numbers(const std::vector<float>& values) { return at::tensor(values); }

// Errors 1 and -0.5: (1 + 0.25) / 2.
TEST(ValueLoss, IsHalfTheSquaredErrorAndItsGradientTheError) {
  at::Tensor values = Numbers({2, 0.5f}).requires_grad_(true);
  const ValueLossSums sums =
      SumValueLoss({values, values.detach(), Numbers({1, 1}), Numbers({1, 2})},
                   /*clip=*/0);
  EXPECT_FLOAT_EQ(sums.total.item<float>(), 0.5f + 0.25f);
  sums.total.backward();
  EXPECT_FLOAT_EQ(values.grad()[0].item<float>(), 1);
  EXPECT_FLOAT_EQ(values.grad()[1].item<float>(), -1);
}

// The value moved from 0 to 1 towards the target 2, and a clip of 0.2 counts it as 0.2: the larger
// error is (2 - 0.2), without a gradient. The second moved away from its target: no clip helps it.
TEST(ValueLoss, StopsFallingWhereTheValueLeftItsStart) {
  at::Tensor values = Numbers({1, 1}).requires_grad_(true);
  const ValueLossSums sums =
      SumValueLoss({values, Numbers({0, 0}), Numbers({2, -1}), Numbers({1, 1})}, 0.2);
  EXPECT_FLOAT_EQ(sums.total.item<float>(), 1.8f * 1.8f / 2 + 2 * 2 / 2);
  EXPECT_EQ(sums.num_clipped, 1);
  sums.total.backward();
  EXPECT_FLOAT_EQ(values.grad()[0].item<float>(), 0);
  EXPECT_FLOAT_EQ(values.grad()[1].item<float>(), 2);
}

TEST(ValueTargetsCarryingAGradient, WouldMoveTheCriticTowardsItself) {
  at::Tensor values = Numbers({1}).requires_grad_(true);
  const at::Tensor targets = values * 0.5;
  SumValueLoss({values, values, targets, Numbers({1})}, 0.2).total.backward();
  EXPECT_FLOAT_EQ(values.grad()[0].item<float>(), 0.5f) << "v - target, the target as a number";
}

}  // namespace
}  // namespace tandem::trainer
