#include "trainer/rewards/ngrams.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::trainer {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(Repetition, IsTheShareOfRunsThatCameBefore) {
  EXPECT_DOUBLE_EQ(Repetition("a b c d", 2), 0);
  // Runs ab, bc, ca, ab, bc: three of five are distinct.
  EXPECT_DOUBLE_EQ(Repetition("a b c a b c", 2), -0.4);
  EXPECT_DOUBLE_EQ(Repetition("a a a a a", 1), -0.8);
  EXPECT_DOUBLE_EQ(Repetition("a  b\na\tb", 2), -1.0 / 3) << "any white space separates words";
}

TEST(Repetition, ATextOfFewWordsRepeatsNothing) {
  EXPECT_DOUBLE_EQ(Repetition("", 3), 0);
  EXPECT_DOUBLE_EQ(Repetition("   ", 3), 0);
  EXPECT_DOUBLE_EQ(Repetition("a a", 3), 0) << "one run";
}

TEST(Diversity, IsOneLessTheMeanSimilarityToTheOthers) {
  // Words in common over words in either: 1/3 of the first two, 0 with the third.
  EXPECT_THAT(Diversity({"a b", "b c", "d"}, 1),
              ElementsAre(DoubleEq(5.0 / 6), DoubleEq(5.0 / 6), DoubleEq(1)));
  EXPECT_THAT(Diversity({"a b", "a b"}, 2), ElementsAre(0, 0));
  EXPECT_THAT(Diversity({"a b", "b a"}, 2), ElementsAre(1, 1)) << "runs of two, not words";
}

TEST(Diversity, AGroupOfOneIsDiverseAndEmptyTextsAreTheSame) {
  EXPECT_THAT(Diversity({"a"}, 3), ElementsAre(1));
  EXPECT_THAT(Diversity({"", ""}, 3), ElementsAre(0, 0));
}

}  // namespace
}  // namespace tandem::trainer
