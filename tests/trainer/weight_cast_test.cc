#include "trainer/weight_cast.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

float FromBits(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// Between 1 and 1 + 2^-7 lies one bf16 ulp.
constexpr float kUlp = 0x1.0p-7f;

TEST(NearestBf16Test, RoundsHalfToEven) {
  EXPECT_EQ(FromBits(NearestBf16(1.0f + 0.49f * kUlp)), 1.0f);
  EXPECT_EQ(FromBits(NearestBf16(1.0f + 0.5f * kUlp)), 1.0f);
  EXPECT_EQ(FromBits(NearestBf16(1.0f + 1.5f * kUlp)), 1.0f + 2 * kUlp);
  EXPECT_EQ(FromBits(NearestBf16(-1.0f - 0.51f * kUlp)), -1.0f - kUlp);
}

TEST(NearestBf16Test, KeepsWhatIsNotFiniteAndNeverMakesInfinity) {
  EXPECT_TRUE(std::isnan(FromBits(NearestBf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(FromBits(NearestBf16(std::numeric_limits<float>::infinity()))));
  EXPECT_TRUE(std::isfinite(FromBits(NearestBf16(std::numeric_limits<float>::max()))));
}

TEST(DitherBf16Test, RoundsUpAsOftenAsTheRemainderSays) {
  const float x = 1.0f + 0.25f * kUlp;
  int up = 0;
  for (uint64_t i = 0; i < 100000; ++i) up += FromBits(DitherBf16(x, 5, i)) != 1.0f;
  // Binomial: 25000 expected, standard deviation 137; 5 of them.
  EXPECT_NEAR(up, 25000, 685);
}

TEST(DitherBf16Test, LeavesRepresentableValuesAlone) {
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(FromBits(DitherBf16(-1.0f - kUlp, 9, i)), -1.0f - kUlp);
}

TEST(DitherBf16Test, KeepsItsThresholdAsAnElementMoves) {
  // Once an element rounds up it stays up while its master rises within the ulp.
  for (uint64_t i = 0; i < 200; ++i) {
    bool was_up = false;
    for (int step = 0; step <= 64; ++step) {
      const float x = 1.0f + kUlp * static_cast<float>(step) / 64.0f;
      const bool up = FromBits(DitherBf16(x, 3, i)) > 1.0f;
      EXPECT_TRUE(up || !was_up);
      was_up = up;
    }
    EXPECT_TRUE(was_up);
  }
}

std::vector<NamedParameter> OneTensor(float value, int64_t n) {
  return {{"model.norm.weight", at::full({n}, value)}};
}

TEST(WeightCastTest, GivesTheSameBytesForTheSameMasters) {
  std::vector<NamedParameter> p = OneTensor(1.0f + 0.3f * kUlp, 1000);
  WeightCast cast(CastMode::kDither);
  const auto first = cast.Cast(p, DType::kBF16);
  const auto second = cast.Cast(p, DType::kBF16);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_TRUE(std::equal(first->tensors[0].bytes.begin(), first->tensors[0].bytes.end(),
                         second->tensors[0].bytes.begin()));
  EXPECT_EQ(second->changed_share, 0);
}

// Bug 42: an update of 0.3 ulp is lost whole under nearest rounding, and counted as lost.
TEST(WeightCastTest, Bug42CountsTheUpdateThatNearestRoundingSwallows) {
  std::vector<NamedParameter> p = OneTensor(1.0f, 10000);
  WeightCast nearest(CastMode::kNearest), dither(CastMode::kDither);
  ASSERT_THAT(nearest.Cast(p, DType::kBF16), IsOk());
  ASSERT_THAT(dither.Cast(p, DType::kBF16), IsOk());
  p[0].master.add_(0.3f * kUlp);
  const auto lost = nearest.Cast(p, DType::kBF16);
  const auto kept = dither.Cast(p, DType::kBF16);
  ASSERT_THAT(lost, IsOk());
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ(lost->changed_share, 0);
  EXPECT_NEAR(lost->update_norm, 0.3 * kUlp * 100, 1e-5);
  EXPECT_NEAR(lost->lost_norm, lost->update_norm, 1e-9);
  EXPECT_NEAR(kept->changed_share, 0.3, 0.03);
}

TEST(WeightCastTest, LosesNothingInFp32) {
  std::vector<NamedParameter> p = OneTensor(1.0f, 4);
  WeightCast cast(CastMode::kDither);
  ASSERT_THAT(cast.Cast(p, DType::kF32), IsOk());
  p[0].master.slice(0, 0, 1).add_(1e-6f);
  const auto result = cast.Cast(p, DType::kF32);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->changed_share, 0.25);
  EXPECT_EQ(result->lost_norm, 0);
}

TEST(WeightCastTest, RefusesADTypeNoServerRuns) {
  std::vector<NamedParameter> p = OneTensor(1.0f, 4);
  EXPECT_THAT(WeightCast(CastMode::kNearest).Cast(p, DType::kF16),
              FailsWith(absl::StatusCode::kInvalidArgument, "F16, want F32 or BF16"));
}

}  // namespace
}  // namespace tandem::trainer
