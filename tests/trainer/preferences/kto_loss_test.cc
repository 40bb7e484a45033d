#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/trainer/preferences/central_difference.h"
#include "trainer/preferences/preference_loss.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::CentralDifference;

// Log ratios 3 (desirable) and 5 (not).
const std::vector<double> kLogprobs = {-2, -1}, kReference = {-5, -6};
const std::vector<uint8_t> kDesirable = {1, 0};

KtoLoss KtoLossOf(const std::vector<double>& logprobs, double reference_point,
                  const PreferenceLossOptions& options) {
  return ComputeKtoLoss({logprobs, kReference, kDesirable}, reference_point, options);
}

TEST(KtoLoss, ComparesEachLogRatioWithTheReferencePoint) {
  const PreferenceLossOptions options{.kind = PreferenceLossKind::kKto, .beta = 0.5};
  const KtoLoss loss = KtoLossOf(kLogprobs, 1, options);
  EXPECT_NEAR(loss.value[0], 1 - 0.7310585786, 1e-9);  // 1 - sigmoid(0.5 (3 - 1))
  EXPECT_NEAR(loss.value[1], 0.8807970780, 1e-9);      // 1 - sigmoid(0.5 (1 - 5))
  EXPECT_NEAR(loss.slope[0], -0.5 * 0.7310585786 * 0.2689414214, 1e-9);
  EXPECT_GT(loss.slope[1], 0);
  EXPECT_NEAR(loss.reward[0], 1.5, 1e-12);
  EXPECT_NEAR(loss.reward[1], 2.5, 1e-12);
}

TEST(KtoLoss, WeighsDesirableAndUndesirableCompletions) {
  PreferenceLossOptions options{.kind = PreferenceLossKind::kKto, .beta = 0.5};
  const KtoLoss plain = KtoLossOf(kLogprobs, 1, options);
  options.desirable_weight = 3;
  options.undesirable_weight = 0.5;
  const KtoLoss weighted = KtoLossOf(kLogprobs, 1, options);
  EXPECT_NEAR(weighted.value[0], 3 * plain.value[0], 1e-12);
  EXPECT_NEAR(weighted.slope[0], 3 * plain.slope[0], 1e-12);
  EXPECT_NEAR(weighted.value[1], 0.5 * plain.value[1], 1e-12);
  EXPECT_NEAR(weighted.slope[1], 0.5 * plain.slope[1], 1e-12);
}

TEST(KtoLoss, Bug64HasNoGradientThroughTheReferencePoint) {
  // With equal weights the two derivatives by z0 would cancel here.
  const PreferenceLossOptions options{
      .kind = PreferenceLossKind::kKto, .beta = 0.5, .undesirable_weight = 3};
  const auto with_point = [&](const std::vector<double>& x, double point) {
    const KtoLoss loss = KtoLossOf(x, point, options);
    return loss.value[0] + loss.value[1];
  };
  const auto detached = [&](const std::vector<double>& x) { return with_point(x, 4); };
  // The classic mistake: z0 from the log-probs of the batch itself, here also 4, moves with them.
  const auto attached = [&](const std::vector<double>& x) {
    return with_point(x, KtoReferencePoint(x[0] - kReference[0] + x[1] - kReference[1], 2));
  };
  const KtoLoss loss = KtoLossOf(kLogprobs, 4, options);
  for (const size_t i : {0, 1}) {
    EXPECT_NEAR(loss.slope[i], CentralDifference(detached, kLogprobs, i), 1e-8);
    EXPECT_GT(std::abs(loss.slope[i] - CentralDifference(attached, kLogprobs, i)), 0.05);
  }
}

TEST(KtoReferencePoint, Bug64IsTheMeanLogRatioAndNeverNegative) {
  EXPECT_EQ(KtoReferencePoint(6, 4), 1.5);
  EXPECT_EQ(KtoReferencePoint(-6, 4), 0);
  EXPECT_EQ(KtoReferencePoint(0, 0), 0);
}

TEST(MismatchedCompletion, IsThatOfAnotherRowForEveryRow) {
  EXPECT_EQ(MismatchedCompletion(0, 3), 2);
  EXPECT_EQ(MismatchedCompletion(1, 3), 0);
  EXPECT_EQ(MismatchedCompletion(2, 3), 1);
}

TEST(KtoLoss, IsFiniteFarFromTheReferencePoint) {
  const PreferenceLossOptions options{.kind = PreferenceLossKind::kKto, .beta = 1};
  for (const double shift : {-1000.0, 1000.0}) {
    const KtoLoss loss = KtoLossOf({shift, shift}, 0, options);
    EXPECT_NEAR(loss.value[0], shift > 0 ? 0 : 1, 1e-9);
    EXPECT_NEAR(loss.value[1], shift > 0 ? 1 : 0, 1e-9);
    EXPECT_NEAR(loss.slope[0], 0, 1e-9);
  }
}

}  // namespace
}  // namespace tandem::trainer
