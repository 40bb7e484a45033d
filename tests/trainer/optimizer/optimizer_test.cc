#include "trainer/optimizer/optimizer.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/test_devices.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::OnDevice;

std::vector<NamedParameter> Parameters() {
  at::manual_seed(7);
  return {{"matrix", at::randn({5, 7}).requires_grad_(true)},
          {"norm", at::randn({7}).requires_grad_(true)}};
}

std::vector<NamedParameter> ParametersOnDevice() {
  std::vector<NamedParameter> parameters = Parameters();
  for (NamedParameter& p : parameters) {
    p.master = OnDevice(p.master.detach()).requires_grad_(true);
  }
  return parameters;
}

void SetGradients(const std::vector<NamedParameter>& parameters, int step) {
  at::manual_seed(100 + step);
  for (const NamedParameter& p : parameters) {
    at::Tensor master = p.master;
    master.mutable_grad() = (at::randn(p.master.sizes()) * (step + 1)).to(master.device());
  }
}

// One rank's update.
OptimizerUpdate Step(AdamW& optimizer) { return optimizer.Step(optimizer.SquaredGradNorm()); }

std::vector<TensorSource> StateOf(const AdamW& optimizer) {
  return optimizer.State(
      [](size_t, const std::vector<at::Tensor>& own) { return own.at(0).cpu(); });
}

TEST(AdamWTest, AgreesWithLibTorchOverTenUpdatesWithWeightDecay) {
  std::vector<NamedParameter> ours = Parameters();
  const std::vector<NamedParameter> theirs = Parameters();
  AdamW optimizer(&ours, {.learning_rate = 1e-2, .weight_decay = 0.1, .max_grad_norm = 0});
  torch::optim::AdamW matrix({theirs[0].master},
                             torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  torch::optim::AdamW norm({theirs[1].master}, torch::optim::AdamWOptions(1e-2).weight_decay(0));
  for (int step = 0; step < 10; ++step) {
    SetGradients(ours, step);
    SetGradients(theirs, step);
    Step(optimizer);
    matrix.step();
    norm.step();
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LT((ours[i].master - theirs[i].master).abs().max().item<float>(), 2e-6f) << ours[i].name;
  }
}

// One parameter, g = 3 and 4: the norm is 5 and the clip at 1 leaves 0.6 and 0.8. With beta1 = 0
// and beta2 = 0 the update is lr * g / abs(g), so use epsilon to see the clipped size: g / (abs(g)
// + 1).
TEST(AdamWTest, ClipsTheGlobalNorm) {
  std::vector<NamedParameter> p = {{"a", at::tensor({0.0f, 0.0f}).requires_grad_(true)}};
  AdamW optimizer(&p,
                  {.learning_rate = 1, .beta1 = 0, .beta2 = 0, .epsilon = 1, .max_grad_norm = 1});
  p[0].master.mutable_grad() = at::tensor({3.0f, 4.0f});
  const OptimizerUpdate update = Step(optimizer);
  EXPECT_NEAR(update.grad_norm, 5, 1e-6);
  EXPECT_TRUE(update.clipped);
  EXPECT_NEAR(p[0].master[0].item<float>(), -0.6 / 1.6, 1e-5);
  EXPECT_NEAR(p[0].master[1].item<float>(), -0.8 / 1.8, 1e-5);
}

TEST(AdamWTest, SkipsAnUpdateWithAGradientThatIsNotFinite) {
  std::vector<NamedParameter> p = {{"a", at::tensor({1.0f, 2.0f}).requires_grad_(true)}};
  AdamW optimizer(&p, {.learning_rate = 1});
  p[0].master.mutable_grad() = at::tensor({std::numeric_limits<float>::quiet_NaN(), 1.0f});
  EXPECT_TRUE(Step(optimizer).skipped);
  EXPECT_EQ(p[0].master[1].item<float>(), 2.0f);
  EXPECT_EQ(optimizer.num_updates(), 0);
  EXPECT_TRUE(p[0].master.grad().equal(at::zeros({2})));
}

TEST(AdamWTest, GoesOnBitwiseFromASavedState) {
  std::vector<NamedParameter> straight = Parameters(), resumed = Parameters();
  AdamW one(&straight, {.learning_rate = 1e-2});
  AdamW before(&resumed, {.learning_rate = 1e-2});
  for (int step = 0; step < 3; ++step) {
    SetGradients(straight, step);
    Step(one);
    SetGradients(resumed, step);
    Step(before);
  }
  AdamW after(&resumed, {.learning_rate = 1e-2});
  ASSERT_THAT(after.Restore(StateOf(before), 3), IsOk());
  for (int step = 3; step < 5; ++step) {
    SetGradients(straight, step);
    Step(one);
    SetGradients(resumed, step);
    Step(after);
  }
  EXPECT_TRUE(straight[0].master.equal(resumed[0].master));
}

// Of sharded parameters, whose whole gradients are not there.
TEST(AdamWTest, ARankThatOwnsNoSliceTouchesNothing) {
  std::vector<NamedParameter> p = Parameters();
  const at::Tensor before = p[0].master.detach().clone();
  SetGradients(p, 1);
  AdamW optimizer(&p, {.learning_rate = 1}, {.apart = true});
  EXPECT_EQ(optimizer.SquaredGradNorm(), 0);
  EXPECT_FALSE(optimizer.Step(1).skipped);
  EXPECT_TRUE(optimizer.Step(std::numeric_limits<double>::quiet_NaN()).skipped);
  EXPECT_TRUE(p[0].master.detach().equal(before));
  EXPECT_NE(p[0].master.grad().abs().max().item<float>(), 0);
}

// 35 elements of "matrix" and 7 of "norm", cut at 20: each part sees the norm of both.
TEST(AdamWTest, TwoPartsMakeTheUpdateOfTheWhole) {
  const OptimizerOptions options = {
      .learning_rate = 1e-2, .weight_decay = 0.1, .max_grad_norm = 0.5};
  std::vector<NamedParameter> whole = Parameters(), parts = Parameters();
  AdamW of_whole(&whole, options);
  AdamW first(&parts, options, {.slices = {{0, 0, 20}}});
  AdamW second(&parts, options, {.slices = {{0, 20, 15}, {1, 0, 7}}});
  for (int step = 0; step < 3; ++step) {
    SetGradients(whole, step);
    SetGradients(parts, step);
    const double squares = first.SquaredGradNorm() + second.SquaredGradNorm();
    EXPECT_NEAR(squares, of_whole.SquaredGradNorm(), 1e-6 * squares);
    of_whole.Step(squares);
    EXPECT_TRUE(first.Step(squares).clipped);
    second.Step(squares);
  }
  for (size_t i = 0; i < 2; ++i) {  // to rounding: what is at a slice's end is not done in vectors
    EXPECT_LT((whole[i].master - parts[i].master).abs().max().item<float>(), 5e-7f);
  }
  EXPECT_EQ(of_whole.state_bytes(), 42 * 8);
  EXPECT_EQ(first.state_bytes(), 20 * 8);
  EXPECT_EQ(second.state_bytes(), 22 * 8);
}

// What a device runs, on the CPU: LibTorch's loops beside our own, over slices, with weight decay
// and with clipped and scaled gradients.
TEST(AdamWTest, LibTorchsLoopsMakeOurUpdate) {
  const OptimizerOptions options = {
      .learning_rate = 1e-2, .weight_decay = 0.1, .max_grad_norm = 0.5};
  std::vector<NamedParameter> ours = Parameters(), theirs = ParametersOnDevice();
  AdamW own(&ours, options);
  const OwnSlices cut = {.slices = {{0, 0, 20}, {0, 20, 15}, {1, 0, 7}}};
  AdamW fused(&theirs, options, cut, UpdateLoops::kLibTorch);
  for (int step = 0; step < 6; ++step) {
    SetGradients(ours, step);
    SetGradients(theirs, step);
    const double squares = own.SquaredGradNorm();
    EXPECT_NEAR(fused.SquaredGradNorm(), squares, 1e-6 * squares);
    const double scale = step % 2 == 0 ? 0.25 : 1e-3;  // clipped, and not
    EXPECT_EQ(own.Step(squares, scale).clipped, step % 2 == 0);
    EXPECT_EQ(fused.Step(squares, scale).clipped, step % 2 == 0);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_LT((ours[i].master - theirs[i].master.cpu()).abs().max().item<float>(), 1e-6f) << step;
      EXPECT_TRUE(theirs[i].master.grad().equal(at::zeros_like(theirs[i].master)));
    }
  }
  EXPECT_EQ(fused.num_updates(), 6);
}

TEST(AdamWTest, ASavedStateGoesOnWhereverItIsRestored) {
  std::vector<NamedParameter> ours = Parameters(), theirs = ParametersOnDevice();
  AdamW before(&theirs, {.learning_rate = 1e-2}, {.slices = {{0, 0, 35}, {1, 0, 7}}},
               UpdateLoops::kLibTorch);
  SetGradients(theirs, 1);
  Step(before);
  AdamW after(&ours, {.learning_rate = 1e-2});
  ASSERT_THAT(after.Restore(StateOf(before), 1), IsOk());
  AdamW back(&theirs, {.learning_rate = 1e-2}, {.slices = {{0, 0, 35}, {1, 0, 7}}},
             UpdateLoops::kLibTorch);
  ASSERT_THAT(back.Restore(StateOf(after), 1), IsOk());
  const auto first = StateOf(before), last = StateOf(back);
  for (size_t i = 0; i < first.size(); ++i) {
    const HostTensor a = first[i].read().value(), b = last[i].read().value();
    EXPECT_EQ(a.spec, b.spec);
    EXPECT_TRUE(std::ranges::equal(a.bytes, b.bytes)) << a.spec.name;
  }
}

TEST(AdamWTest, LibTorchsLoopsSkipAndMakeMissingGradients) {
  std::vector<NamedParameter> p = Parameters();
  const at::Tensor matrix = p[0].master.detach().clone();
  AdamW optimizer(&p, {.learning_rate = 1}, {.slices = {{0, 0, 35}, {1, 0, 7}}},
                  UpdateLoops::kLibTorch);
  EXPECT_EQ(optimizer.SquaredGradNorm(), 0);
  EXPECT_TRUE(optimizer.Step(std::numeric_limits<double>::infinity()).skipped);
  EXPECT_EQ(optimizer.num_updates(), 0);
  p[1].master.mutable_grad() = at::ones({7});
  EXPECT_FALSE(Step(optimizer).skipped);
  EXPECT_TRUE(p[0].master.detach().equal(matrix)) << "no gradient, no decay";
  EXPECT_TRUE(p[0].master.grad().equal(at::zeros({5, 7})));
}

TEST(AdamWTest, RefusesAStateThatLacksAMoment) {
  std::vector<NamedParameter> p = Parameters();
  AdamW optimizer(&p, {});
  EXPECT_THAT(optimizer.Restore({}, 1),
              FailsWith(absl::StatusCode::kInvalidArgument, "exp_avg.matrix is missing"));
}

TEST(LearningRateTest, WarmsUpThenDecaysByCosine) {
  const OptimizerOptions o = {.learning_rate = 1,
                              .warmup_updates = 2,
                              .decay = LearningRateDecay::kCosine,
                              .decay_updates = 4,
                              .min_learning_rate = 0.2};
  EXPECT_DOUBLE_EQ(LearningRate(o, 0), 0.5);
  EXPECT_DOUBLE_EQ(LearningRate(o, 1), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(o, 2), 1.0);
  EXPECT_NEAR(LearningRate(o, 4), 0.6, 1e-12);
  EXPECT_NEAR(LearningRate(o, 60), 0.2, 1e-12);
}

TEST(LearningRateTest, DecaysLinearly) {
  const OptimizerOptions o = {
      .learning_rate = 1, .decay = LearningRateDecay::kLinear, .decay_updates = 4};
  EXPECT_DOUBLE_EQ(LearningRate(o, 1), 0.75);
  EXPECT_DOUBLE_EQ(LearningRate(o, 9), 0.0);
}

}  // namespace
}  // namespace tandem::trainer
