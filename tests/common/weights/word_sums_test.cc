#include "common/weights/digest.h"

#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

namespace tandem {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// 0xe220a8397b1dcdaf is the first output of SplitMix64 for seed 0, as published. The other values
// were computed by the header's formula with Python's integers.
TEST(WordSums, AreTheSumsOfEachWordMixedWithItsPlace) {
  EXPECT_EQ(TermsOf(0, 0), (WordSums{0xe220a8397b1dcdaf, 0x7f9fa62eb5e942b3}));
  EXPECT_EQ(WordSumsDigest({}), "0000000000000000b4d055fcf2cbbd7b");
  EXPECT_EQ(WordSumsDigest(BytesOf("AAAAAAAA")), "2748c9347c787614a22b06ab607d5408");
  EXPECT_EQ(WordSumsDigest(BytesOf("AAAAAAAABBBBBB")), "38449d49a1f792fef66408be3419a8d3");
}

TEST(WordSums, AreThoseOfPartsTogetherInAnyOrder) {
  WordSums sums;
  for (const auto& [word, index] : {std::pair(0x4242424242424242ull, 1), {0x41ull, 2}, {7ull, 0}}) {
    const WordSums terms = TermsOf(word, static_cast<uint64_t>(index));
    sums.first += terms.first;
    sums.second += terms.second;
  }
  EXPECT_EQ(SumWords(BytesOf(std::string_view("\7\0\0\0\0\0\0\0BBBBBBBBA", 17))), sums);
}

TEST(WordSums, EveryFlippedBitShowsInBothSums) {
  std::vector<std::byte> bytes(45);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37);
  const WordSums whole = SumWords(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= std::byte(1u << bit % 8);
    const WordSums flipped = SumWords(bytes);
    EXPECT_NE(flipped.first, whole.first) << bit;
    EXPECT_NE(flipped.second, whole.second) << bit;
    bytes[bit / 8] ^= std::byte(1u << bit % 8);
  }
}

TEST(WordSums, WordsThatAreSwappedShiftedOrLostShow) {
  const std::string_view whole = "AAAAAAAABBBBBBBBCCCCCCCC";
  for (const std::string_view other : {"BBBBBBBBAAAAAAAACCCCCCCC", "CAAAAAAAABBBBBBBBCCCCCCC",
                                       "AAAAAAAABBBBBBBB", "AAAAAAAACCCCCCCCCCCCCCCC"}) {
    EXPECT_NE(WordSumsDigest(BytesOf(other)), WordSumsDigest(BytesOf(whole))) << other;
  }
}

// The last word is padded with zeros, so the length must count.
TEST(WordSums, ZerosAtTheEndShow) {
  const std::vector<std::byte> eight(8), nine(9);
  EXPECT_NE(WordSumsDigest(eight), WordSumsDigest(nine));
  EXPECT_NE(WordSumsDigest(std::span(eight).first(7)), WordSumsDigest(eight));
}

}  // namespace
}  // namespace tandem
