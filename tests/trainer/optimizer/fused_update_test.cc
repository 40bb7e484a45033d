#include "trainer/optimizer/fused_update.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/trainer/test_devices.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::OnDevice;

at::Tensor Floats(const std::vector<float>& values) { return OnDevice(at::tensor(values)); }
at::Tensor Zeros(int64_t size) { return OnDevice(at::zeros({size})); }

TEST(SumOfSquares, AddsUpAllTensors) {
  EXPECT_EQ(SumOfSquares({}), 0);
  EXPECT_EQ(SumOfSquares({Floats({3.0f, 4.0f}), Floats({12.0f, 0.0f}).view({2, 1})}), 25 + 144);
}

TEST(SumOfSquares, KeepsWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOfSquares({Floats({1.0f}), Floats({nan})})));
}

// 4294967297 is no float: the sum over tensors is in double.
TEST(SumOfSquares, AddsSquaresInDouble) {
  EXPECT_EQ(SumOfSquares({Floats({65536.0f}), Floats({1.0f})}), 4294967297.0);
}

// p = 1, g = 2 scaled by 0.25, so 0.5; m = 0.1 * 0.5, v = 0.01 * 0.25; both corrected for the
// second update. Decay takes 0.1 * 0.2 of p first. On a device, LibTorch's kernel takes 0.1 and 0.01
// as 1 - beta in fp32.
TEST(FusedAdamW, MakesTheUpdateWorkedByHand) {
  const FusedTensors tensors = {.masters = {Floats({1.0f})},
                                .gradients = {Floats({2.0f})},
                                .exp_avg = {Zeros(1)},
                                .exp_avg_sq = {Zeros(1)}};
  FusedAdamW(tensors, {.learning_rate = 0.1,
                       .beta1 = 0.9,
                       .beta2 = 0.99,
                       .epsilon = 0.5,
                       .weight_decay = 0.2,
                       .gradient_scale = 0.25,
                       .num_updates = 2});
#ifdef TANDEM_ON_GPU
  const double of_gradient = 1.0f - 0.9f, of_square = 1.0f - 0.99f;
#else
  const double of_gradient = 0.1, of_square = 0.01;
#endif
  EXPECT_NEAR(tensors.exp_avg[0].item<float>(), of_gradient * 0.5, 1e-8);
  EXPECT_NEAR(tensors.exp_avg_sq[0].item<float>(), of_square * 0.25, 1e-9);
  const double m = 0.05 / (1 - 0.81), root = std::sqrt(0.0025 / (1 - 0.9801));
  EXPECT_NEAR(tensors.masters[0].item<float>(), 0.98 - 0.1 * m / (root + 0.5), 1e-7);
  EXPECT_EQ(tensors.gradients[0].item<float>(), 0);
}

TEST(FusedAdamW, UpdatesAPartOfATensorAndNothingBesideIt) {
  const at::Tensor master = Zeros(4), gradient = Floats({1.0f, 1.0f, -1.0f, 1.0f});
  FusedAdamW({.masters = {master.narrow(0, 1, 2)},
              .gradients = {gradient.narrow(0, 1, 2)},
              .exp_avg = {Zeros(2)},
              .exp_avg_sq = {Zeros(2)}},
             {.learning_rate = 1, .epsilon = 1});
  EXPECT_TRUE(master.equal(Floats({0.0f, -0.5f, 0.5f, 0.0f})));
  EXPECT_TRUE(gradient.equal(Floats({1.0f, 0.0f, 0.0f, 1.0f})));
}

}  // namespace
}  // namespace tandem::trainer
