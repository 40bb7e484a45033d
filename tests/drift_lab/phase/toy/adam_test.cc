#include "drift_lab/phase/toy/adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem::drift {
namespace {

constexpr double kNoClip = std::numeric_limits<double>::infinity();

TEST(ToyAdamTest, TheFirstUpdateMovesEveryParameterByTheLearningRate) {
  Adam adam(2, {.learning_rate = 0.1, .max_norm = kNoClip});
  std::vector<double> parameters = {1, 1};
  EXPECT_EQ(adam.Update({3, -4}, parameters), 5);
  EXPECT_NEAR(parameters[0], 0.9, 1e-9);
  EXPECT_NEAR(parameters[1], 1.1, 1e-9);
}

TEST(ToyAdamTest, TheSecondUpdateAgainstHandWorkedMoments) {
  Adam adam(1, {.learning_rate = 0.1, .max_norm = kNoClip});
  std::vector<double> parameters = {0};
  adam.Update({1}, parameters);
  adam.Update({-1}, parameters);
  // m = .9 * .1 - .1 = -.01, over 1 - .81 = .19; v = .001999, over 1 - .998001 = .001999, so 1.
  EXPECT_NEAR(parameters[0], -0.1 + 0.1 * 0.01 / 0.19, 1e-8);
}

// torch.optim.Adam(lr=3e-3) after torch.nn.utils.clip_grad_norm_(..., 1), float64, torch 2.11,
// gradients
// [.01 t sin(t (i + 1)) for i in 0..3] in updates t = 1..60 from zeros:
//   .deps/venv/bin/python tests/drift_lab/phase/adam_reference.py
TEST(ToyAdamTest, SixtyClippedUpdatesAgreeWithTorch) {
  Adam adam(4, {.learning_rate = 3e-3});
  std::vector<double> parameters(4, 0.0);
  for (int t = 1; t <= 60; ++t) {
    std::vector<double> gradient(4);
    for (int i = 0; i < 4; ++i) gradient[i] = 0.01 * t * std::sin(t * (i + 1));
    adam.Update(gradient, parameters);
  }
  EXPECT_NEAR(parameters[0], -0.007020871720, 1e-10);
  EXPECT_NEAR(parameters[1], -0.001089172862, 1e-10);
  EXPECT_NEAR(parameters[2], -0.001870717928, 1e-10);
  EXPECT_NEAR(parameters[3], 0.002052456976, 1e-10);
}

TEST(ToyAdamTest, ALongGradientIsCutToTheLargestNorm) {
  Adam clipped(2, {.max_norm = 1}), scaled(2, {.max_norm = kNoClip});
  std::vector<double> a = {0, 0}, b = {0, 0};
  EXPECT_EQ(clipped.Update({0.3, 0.4}, a), 0.5);
  scaled.Update({0.3, 0.4}, b);
  EXPECT_EQ(a, b);  // under the limit: untouched
  EXPECT_EQ(clipped.Update({30, 40}, a), 50);
  scaled.Update({0.6, 0.8}, b);
  EXPECT_NEAR(a[0], b[0], 1e-15);
  EXPECT_NEAR(a[1], b[1], 1e-15);
}

}  // namespace
}  // namespace tandem::drift
