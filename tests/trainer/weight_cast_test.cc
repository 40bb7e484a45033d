#include "trainer/weight_cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
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
  std::vector<HostTensor> masters() const {
    return {{.spec = {"model.norm.weight", DType::kF32, {static_cast<int64_t>(values_.size())}},
             .bytes = std::as_bytes(std::span(values_))}};
  }

 private:
  std::vector<float> values_;
};

TEST(WeightCastTest, GivesTheSameBytesForTheSameMasters) {
  OneTensor p(1.0f + 0.3f * kUlp, 1000);
  WeightCaster cast({Rounding::kDither});
  const auto first = cast.Cast(p.masters(), DType::kBF16);
  const auto second = cast.Cast(p.masters(), DType::kBF16);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  EXPECT_TRUE(std::equal(first->tensors[0].bytes.begin(), first->tensors[0].bytes.end(),
                         second->tensors[0].bytes.begin()));
  EXPECT_EQ(second->numbers.changed_share, 0);
}

// Bug 42: an update of 0.3 ulp is lost whole under nearest rounding, and counted as lost.
TEST(WeightCastTest, Bug42CountsTheUpdateThatNearestRoundingSwallows) {
  OneTensor p(1.0f, 10000);
  WeightCaster nearest({Rounding::kNearest}), dither({Rounding::kDither});
  ASSERT_THAT(nearest.Cast(p.masters(), DType::kBF16), IsOk());
  ASSERT_THAT(dither.Cast(p.masters(), DType::kBF16), IsOk());
  for (float& value : p.values()) value += 0.3f * kUlp;
  const auto lost = nearest.Cast(p.masters(), DType::kBF16);
  const auto kept = dither.Cast(p.masters(), DType::kBF16);
  ASSERT_THAT(lost, IsOk());
  ASSERT_THAT(kept, IsOk());
  EXPECT_EQ(lost->numbers.changed_share, 0);
  EXPECT_NEAR(lost->numbers.update_norm, 0.3 * kUlp * 100, 1e-5);
  EXPECT_NEAR(lost->numbers.lost_norm, lost->numbers.update_norm, 1e-9);
  EXPECT_EQ(lost->numbers.arrived_share, 0);
  EXPECT_NEAR(kept->numbers.changed_share, 0.3, 0.03);
  // An element in 0.3 carries a whole ulp: 0.3 x 1 over 0.3.
  EXPECT_NEAR(kept->numbers.arrived_share, 1, 0.1);
}

TEST(WeightCastTest, LosesNothingInFp32) {
  OneTensor p(1.0f, 4);
  WeightCaster cast({Rounding::kDither});
  ASSERT_THAT(cast.Cast(p.masters(), DType::kF32), IsOk());
  p.values()[0] += 1e-6f;
  const auto result = cast.Cast(p.masters(), DType::kF32);
  ASSERT_THAT(result, IsOk());
  EXPECT_EQ(result->numbers.changed_share, 0.25);
  EXPECT_EQ(result->numbers.lost_norm, 0);
  EXPECT_EQ(result->numbers.arrived_share, 1);
}

TEST(WeightCastTest, RefusesADTypeNoServerRuns) {
  OneTensor p(1.0f, 4);
  EXPECT_THAT(WeightCaster({Rounding::kNearest}).Cast(p.masters(), DType::kF16),
              FailsWith(absl::StatusCode::kInvalidArgument, "cannot cast weights to F16"));
}

}  // namespace
}  // namespace tandem::trainer
