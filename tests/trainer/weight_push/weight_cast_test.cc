#include "trainer/weight_push/weight_cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

// Between 1 and 1 + 2^-7 lies one bf16 ulp.
constexpr float kUlp = 0x1.0p-7f;

// One fp32 master whose elements can be changed.
class OneTensor {
 public:
  OneTensor(float value, size_t n) : values_(n, value) {}
  std::vector<float>& values() { return values_; }
  std::vector<TensorPart> masters() const { return Cut(0, values_.size()); }
  // Elements [first, first + count) of it.
  std::vector<TensorPart> Cut(size_t first, size_t count) const {
    return {{{.spec = {"model.norm.weight", DType::kF32, {static_cast<int64_t>(count)}},
              .bytes = std::as_bytes(std::span(values_).subspan(first, count))},
             static_cast<int64_t>(first)}};
  }

 private:
  std::vector<float> values_;
};

TEST(WeightCastTest, GivesTheSameBytesForTheSameMasters) {
  OneTensor p(1.0f + 0.3f * kUlp, 1000);
  WeightCaster cast;
  const auto first = cast.Cast(p.masters(), DType::kBF16, Rounding::kDither);
  const auto second = cast.Cast(p.masters(), DType::kBF16, Rounding::kDither);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_TRUE(std::equal(first->tensors[0].bytes.begin(), first->tensors[0].bytes.end(),
                         second->tensors[0].bytes.begin()));
  EXPECT_EQ(second->sums.Numbers().changed_share, 0);
}

// Bug 42: an update of 0.3 ulp is lost whole under nearest rounding, and counted as lost.
TEST(WeightCastTest, Bug42CountsTheUpdateThatNearestRoundingSwallows) {
  OneTensor p(1.0f, 10000);
  WeightCaster nearest, dither;
  ASSERT_THAT(nearest.Cast(p.masters(), DType::kBF16, Rounding::kNearest), IsOk());
  ASSERT_THAT(dither.Cast(p.masters(), DType::kBF16, Rounding::kDither), IsOk());
  for (float& value : p.values()) value += 0.3f * kUlp;
  const auto after_nearest = nearest.Cast(p.masters(), DType::kBF16, Rounding::kNearest);
  const auto after_dither = dither.Cast(p.masters(), DType::kBF16, Rounding::kDither);
  ASSERT_THAT(after_nearest, IsOk());
  ASSERT_THAT(after_dither, IsOk());
  const CastNumbers lost = after_nearest->sums.Numbers(), kept = after_dither->sums.Numbers();
  EXPECT_EQ(lost.changed_share, 0);
  EXPECT_NEAR(lost.update_norm, 0.3 * kUlp * 100, 1e-5);
  EXPECT_NEAR(lost.lost_norm, lost.update_norm, 1e-9);
  EXPECT_EQ(lost.arrived_share, 0);
  EXPECT_NEAR(kept.changed_share, 0.3, 0.03);
  // An element in 0.3 carries a whole ulp: 0.3 x 1 over 0.3.
  EXPECT_NEAR(kept.arrived_share, 1, 0.1);
}

TEST(WeightCastTest, LosesNothingInFp32) {
  OneTensor p(1.0f, 4);
  WeightCaster cast;
  ASSERT_THAT(cast.Cast(p.masters(), DType::kF32, Rounding::kDither), IsOk());
  p.values()[0] += 1e-6f;
  const auto result = cast.Cast(p.masters(), DType::kF32, Rounding::kDither);
  ASSERT_THAT(result, IsOk());
  const CastNumbers numbers = result->sums.Numbers();
  EXPECT_EQ(numbers.changed_share, 0.25);
  EXPECT_EQ(numbers.lost_norm, 0);
  EXPECT_EQ(numbers.arrived_share, 1);
}

// Ranks cast their slices: the same bytes as of the whole tensor, and sums that add up to its.
TEST(WeightCastTest, PartsOfATensorAreCastAsInTheWhole) {
  OneTensor p(1.0f + 0.3f * kUlp, 1000);
  WeightCaster whole, parts;
  const auto both = [&] {
    std::vector<TensorPart> cut = p.Cut(0, 333);
    cut.push_back(p.Cut(333, 667)[0]);
    return cut;
  };
  ASSERT_THAT(whole.Cast(p.masters(), DType::kBF16, Rounding::kDither), IsOk());
  ASSERT_THAT(parts.Cast(both(), DType::kBF16, Rounding::kDither), IsOk());
  for (size_t i = 0; i < 500; ++i) p.values()[i] += 0.3f * kUlp;
  const auto a = whole.Cast(p.masters(), DType::kBF16, Rounding::kDither);
  const auto b = parts.Cast(both(), DType::kBF16, Rounding::kDither);
  ASSERT_THAT(a, IsOk());
  ASSERT_THAT(b, IsOk());
  std::vector<std::byte> joined(b->tensors[0].bytes.begin(), b->tensors[0].bytes.end());
  joined.insert(joined.end(), b->tensors[1].bytes.begin(), b->tensors[1].bytes.end());
  EXPECT_TRUE(std::ranges::equal(joined, a->tensors[0].bytes));
  EXPECT_EQ(b->sums.Numbers().changed_share, a->sums.Numbers().changed_share);
  EXPECT_NEAR(b->sums.Numbers().lost_norm, a->sums.Numbers().lost_norm, 1e-12);
}

TEST(WeightCastTest, RefusesADTypeNoServerRuns) {
  OneTensor p(1.0f, 4);
  EXPECT_THAT(WeightCaster().Cast(p.masters(), DType::kF16, Rounding::kNearest),
              FailsWith(absl::StatusCode::kInvalidArgument, "cannot cast weights to F16"));
}

}  // namespace
}  // namespace tandem::trainer
