#include "rollout_server/engine/sampling/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tandem::rollout {
namespace {

// Known answers of philox4x32-10 in kat_vectors of the Random123 distribution.
TEST(Philox, GivesThePublishedAnswerForZeros) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Philox, GivesThePublishedAnswerForAllBitsSet) {
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(Philox, GivesThePublishedAnswerForTheDigitsOfPi) {
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformIsTheMiddleOfItsInterval) {
  EXPECT_EQ(UniformFromBits(0), 0x1.0p-53);
  EXPECT_EQ(UniformFromBits(uint64_t{1} << 63), 0.5 + 0x1.0p-53);
}

TEST(Philox, UniformNeverReachesZeroOrOne) {
  EXPECT_GT(UniformFromBits(0), 0.0);
  EXPECT_LT(UniformFromBits(~uint64_t{0}), 1.0);
}

TEST(Philox, UniformDrawComesFromTheFirstTwoWordsOfTheBlock) {
  // Counter and key 0: the words 6627e8d5 e169c58d of the published answer.
  EXPECT_NEAR(UniformDraw(0, 0, 0), 0x6627e8d5e169c58d * 0x1.0p-64, 1e-15);
}

TEST(Philox, ADrawIsAFunctionOfSeedCompletionAndPosition) {
  std::set<double> seen;
  const uint64_t seeds[] = {0, 1, uint64_t{1} << 32, ~uint64_t{0}};
  for (uint64_t seed : seeds) {
    for (uint32_t index = 0; index < 8; ++index) {
      for (uint32_t position = 0; position < 64; ++position) {
        const double u = UniformDraw(seed, index, position);
        EXPECT_EQ(u, UniformDraw(seed, index, position));
        seen.insert(u);
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u * 8 * 64);
}

TEST(Philox, DrawsHaveTheMomentsOfAUniform) {
  constexpr int kDraws = 100000;
  double sum = 0, squares = 0;
  for (uint32_t i = 0; i < kDraws; ++i) {
    const double u = UniformDraw(17, i % 64, i / 64);
    sum += u;
    squares += u * u;
  }
  // Four standard errors: sqrt(1/12/n) and sqrt(4/45/n).
  EXPECT_NEAR(sum / kDraws, 0.5, 4 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 4 * std::sqrt(4.0 / 45 / kDraws));
}

}  // namespace
}  // namespace tandem::rollout
