#include "common/offpolicy/correction.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/status_matchers.h"

namespace tandem::offpolicy {
namespace {

using ::tandem::testing::FailsWith;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Batch {
  at::Tensor proximal, behaviour, mask, completion;
  Correction Compute(const CorrectionOptions& options = {}) const {
    return ComputeCorrection(proximal, behaviour, mask, completion, options).value();
  }
};

// delta = 0, log 4, log 1/4 in completion 0; 0 in completion 1; a prompt token first.
Batch MakeBatch() {
  const float log4 = std::log(4.0f);
  return {at::tensor({0.0f, -1.0f, -1.0f, -3.0f, -2.0f}),
          at::tensor({kNan, -1.0f, -1 - log4, -3 + log4, -2.0f}),
          at::tensor({0, 1, 1, 1, 1}).to(at::kBool), at::tensor({-1, 0, 0, 0, 1}, at::kLong)};
}

float At(const at::Tensor& x, int64_t i) { return x[i].item<float>(); }

TEST(CorrectionTest, TruncatesProximalOverBehaviourAtTheCeiling) {
  const Correction c = MakeBatch().Compute();
  EXPECT_FLOAT_EQ(At(c.weight, 0), 0);  // a prompt token, whatever its numbers are
  EXPECT_FLOAT_EQ(At(c.weight, 1), 1);
  EXPECT_FLOAT_EQ(At(c.weight, 2), 2);
  EXPECT_FLOAT_EQ(At(c.weight, 3), 0.25f);
  EXPECT_FLOAT_EQ(At(c.raw_weight, 2), 4);
  EXPECT_EQ(c.num_capped, 1);
  EXPECT_EQ(c.num_rejected, 0);
}

TEST(CorrectionTest, Bug21DroppedTokensAreCountedAndLeaveTheKeptOnes) {
  Batch batch = MakeBatch();
  batch.behaviour[1] = kNan;
  batch.proximal[2] = -kInfinity;
  const Correction c = batch.Compute();
  EXPECT_EQ(c.num_nonfinite, 2);
  EXPECT_EQ(c.num_rejected, 2);
  EXPECT_EQ(c.kept.sum().item<int64_t>(), 2);
  EXPECT_EQ(At(c.weight, 1), 0);
  EXPECT_TRUE(c.proximal_logprobs.isfinite().all().item<bool>());
}

TEST(CorrectionTest, Bug26BypassCentresTheClipOnTheBehaviourPolicyAndWeighsNothing) {
  const Correction c = MakeBatch().Compute({.mode = CorrectionMode::kBypass});
  for (const int64_t t : {1, 2, 3, 4}) EXPECT_EQ(At(c.weight, t), 1.0f);
  EXPECT_EQ(At(c.proximal_logprobs, 2), -1 - std::log(4.0f));
}

TEST(CorrectionTest, MeasureOnlyWeighsNothingAndKeepsTheProximalCentre) {
  const Correction c = MakeBatch().Compute({.mode = CorrectionMode::kMeasureOnly});
  EXPECT_EQ(At(c.weight, 2), 1.0f);
  EXPECT_EQ(At(c.proximal_logprobs, 2), -1.0f);
  EXPECT_FLOAT_EQ(At(c.raw_weight, 2), 4);
}

TEST(CorrectionTest, Bug27NoGradientFlowsThroughTheWeight) {
  Batch batch = MakeBatch();
  batch.proximal.requires_grad_(true);
  const Correction c = batch.Compute();
  EXPECT_FALSE(c.weight.requires_grad());
  EXPECT_FALSE(c.proximal_logprobs.requires_grad());
}

TEST(CorrectionTest, Bug40TheExponentIsClampedAtTwenty) {
  Batch batch = MakeBatch();
  batch.behaviour[1] = -51.0f;  // delta = 50
  batch.proximal[2] = -60.0f;   // delta near -57
  const Correction c = batch.Compute({.max_weight = 1e12});
  EXPECT_FLOAT_EQ(At(c.weight, 1), std::exp(20.0f));
  EXPECT_FLOAT_EQ(At(c.weight, 2), std::exp(-20.0f));
}

TEST(CorrectionTest, TheVetoRefusesTheWholeCompletion) {
  const Correction c = MakeBatch().Compute({.veto_threshold = 0.3});
  EXPECT_EQ(c.num_rejected, 3);
  EXPECT_FALSE(c.kept[1].item<bool>());
  EXPECT_TRUE(c.kept[4].item<bool>());
}

// The bound on the mean log ratio falls with the root of the length: z s / sqrt(T) = 3 * 0.1 /
// sqrt(T), 0.3 for one token, 0.15 for four. A mean of 0.2 + s^2/2 passes the first and not the
// second.
TEST(CorrectionTest, TheGeometricFilterAllowsForLength) {
  const at::Tensor behaviour = at::full({5}, -1.0f), proximal = at::full({5}, -0.8f);
  const Batch batch = {proximal, behaviour, at::ones({5}, at::kBool),
                       at::tensor({0, 1, 1, 1, 1}, at::kLong)};
  const Correction c = batch.Compute({.geometric_z = 3, .geometric_noise = 0.1});
  EXPECT_TRUE(c.kept[0].item<bool>());
  EXPECT_EQ(c.num_rejected, 4);
}

TEST(CorrectionTest, RefusesArraysThatDoNotRunInParallel) {
  Batch batch = MakeBatch();
  EXPECT_THAT(ComputeCorrection(batch.proximal.slice(0, 1), batch.behaviour, batch.mask,
                                batch.completion, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, "proximal_logprobs must be [5]"));
}

}  // namespace
}  // namespace tandem::offpolicy
