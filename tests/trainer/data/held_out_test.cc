#include "trainer/data/held_out.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace tandem::trainer {
namespace {

TEST(IsHeldOut, AShareOfPromptsIsAndALargerShareHoldsTheSameAndMore) {
  int64_t few = 0, many = 0;
  constexpr int kPrompts = 20000;
  for (int i = 0; i < kPrompts; ++i) {
    const std::string prompt = "prompt " + std::to_string(i);
    const bool in_few = IsHeldOut(prompt, 0.05), in_many = IsHeldOut(prompt, 0.2);
    few += in_few;
    many += in_many;
    EXPECT_TRUE(in_many || !in_few);
  }
  // Five standard deviations of a binomial.
  EXPECT_NEAR(few, 0.05 * kPrompts, 5 * std::sqrt(0.05 * 0.95 * kPrompts));
  EXPECT_NEAR(many, 0.2 * kPrompts, 5 * std::sqrt(0.2 * 0.8 * kPrompts));
}

// xxhash.xxh3_64_intdigest of Python: 0x2d06800538d394c2 for "" is 0.176 of 2^64.
TEST(IsHeldOut, IsTheHashOverItsRange) {
  EXPECT_FALSE(IsHeldOut("", 0.17));
  EXPECT_TRUE(IsHeldOut("", 0.18));
  EXPECT_FALSE(IsHeldOut("", 0));
}

}  // namespace
}  // namespace tandem::trainer
