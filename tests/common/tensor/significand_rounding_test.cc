#include "common/model/forward_arithmetic.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

TEST(SignificandRounding, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(RoundedToBits(1.0f, 2), 1.0f);
  EXPECT_EQ(RoundedToBits(1.25f, 2), 1.0f);  // between 1 and 1.5: a tie goes to the even one
  EXPECT_EQ(RoundedToBits(1.75f, 2), 2.0f);  // between 1.5 and 2
  EXPECT_EQ(RoundedToBits(1.26f, 2), 1.5f);
  EXPECT_EQ(RoundedToBits(-1.26f, 2), -1.5f);
  EXPECT_EQ(RoundedToBits(300.0f, 8), 300.0f);
  EXPECT_EQ(RoundedToBits(301.0f, 8), 300.0f);
  EXPECT_EQ(RoundedToBits(303.0f, 8), 304.0f);
  EXPECT_EQ(RoundedToBits(0.0f, 8), 0.0f);
}

TEST(SignificandRounding, EightBitsAreBf16AndAllBitsAreUntouched) {
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const auto value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(value) || std::abs(value) > 1e38f) continue;
    const float bf16 = std::bit_cast<float>(static_cast<uint32_t>(NearestBf16(value)) << 16);
    ASSERT_EQ(RoundedToBits(value, 8), bf16) << value;
    ASSERT_EQ(std::bit_cast<uint32_t>(RoundedToBits(value, 24)), std::bit_cast<uint32_t>(value));
    // A multiple of the binade's step, at most half a step away.
    if (std::fpclassify(value) != FP_NORMAL) continue;
    const double step = std::ldexp(1.0, std::ilogb(value) + 1 - 12);
    ASSERT_LE(std::abs(double{RoundedToBits(value, 12)} - double{value}), step / 2);
    const double steps = RoundedToBits(value, 12) / step;
    ASSERT_EQ(steps, std::round(steps));
  }
}

TEST(SignificandRounding, KeepsWhatIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(RoundedToBits(infinity, 8), infinity);
  EXPECT_EQ(RoundedToBits(-infinity, 8), -infinity);
  EXPECT_TRUE(std::isnan(RoundedToBits(std::numeric_limits<float>::quiet_NaN(), 8)));
}

}  // namespace
}  // namespace tandem
