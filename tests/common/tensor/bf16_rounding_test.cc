#include "common/tensor/bf16_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem {
namespace {

float FromBits(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The distance from 1 to the next bf16.
constexpr float kUlp = 0x1.0p-7f;

TEST(Bf16RoundingTest, NearestRoundsHalfToEven) {
  EXPECT_EQ(FromBits(NearestBf16(1.0f + 0.49f * kUlp)), 1.0f);
  EXPECT_EQ(FromBits(NearestBf16(1.0f + 0.5f * kUlp)), 1.0f);
  EXPECT_EQ(FromBits(NearestBf16(1.0f + 1.5f * kUlp)), 1.0f + 2 * kUlp);
  EXPECT_EQ(FromBits(NearestBf16(-1.0f - 0.51f * kUlp)), -1.0f - kUlp);
  EXPECT_EQ(NearestBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie, even below
  EXPECT_EQ(NearestBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);  // tie, even above
  EXPECT_EQ(NearestBf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
}

TEST(Bf16RoundingTest, NearestKeepsWhatIsNotFiniteAndNeverMakesInfinity) {
  EXPECT_TRUE(std::isnan(FromBits(NearestBf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(FromBits(NearestBf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isinf(FromBits(NearestBf16(std::numeric_limits<float>::infinity()))));
  EXPECT_TRUE(std::isfinite(FromBits(NearestBf16(std::numeric_limits<float>::max()))));
}

TEST(Bf16RoundingTest, DitherRoundsUpAsOftenAsTheRemainderSays) {
  const float x = 1.0f + 0.25f * kUlp;
  int up = 0;
  for (uint64_t i = 0; i < 100000; ++i) up += FromBits(DitherBf16(x, 5, i)) != 1.0f;
  // Binomial: 25000 expected, standard deviation 137; 5 of them.
  EXPECT_NEAR(up, 25000, 685);
}

TEST(Bf16RoundingTest, DitherLeavesRepresentableValuesAlone) {
  for (uint64_t i = 0; i < 1000; ++i)
    EXPECT_EQ(FromBits(DitherBf16(-1.0f - kUlp, 9, i)), -1.0f - kUlp);
}

TEST(Bf16RoundingTest, DitherKeepsItsThresholdAsAnElementMoves) {
  // Once an element rounds up, it stays up while its master rises within the ulp.
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

}  // namespace
}  // namespace tandem
