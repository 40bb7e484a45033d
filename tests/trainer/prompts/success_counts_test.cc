#include "trainer/prompts/success_counts.h"

#include <gtest/gtest.h>

namespace tandem::trainer {
namespace {

TEST(SuccessCounts, APromptThatWasNeverSeenHasTheMeanAndVarianceOfAnEvenPrior) {
  const SuccessCounts counts(2, 1);
  EXPECT_DOUBLE_EQ(counts.Mean(1), 0.5);
  EXPECT_DOUBLE_EQ(counts.ExpectedVariance(1), 1.0 / 6) << "of p uniform in [0, 1]";
  EXPECT_TRUE(counts.Save().empty());
}

TEST(SuccessCounts, AreAPosteriorOfTheRate) {
  SuccessCounts counts(1, 1);
  counts.Add(0, 3, 1);
  counts.Add(0, 3, 1);
  EXPECT_DOUBLE_EQ(counts.Mean(0), 7.0 / 10);
  EXPECT_DOUBLE_EQ(counts.ExpectedVariance(0), 7.0 * 3 / (10 * 11));
  counts.Add(0, 0, 0);
  EXPECT_EQ(counts.Of(0).groups, 2) << "a group whose rewards failed says nothing";
}

TEST(SuccessCounts, EarlierGroupsFade) {
  SuccessCounts counts(1, 0.5);
  counts.Add(0, 4, 0);
  counts.Add(0, 0, 4);
  EXPECT_DOUBLE_EQ(counts.Of(0).successes, 2);
  EXPECT_DOUBLE_EQ(counts.Of(0).failures, 4);
}

TEST(SuccessCounts, GoOnFromWhatWasSaved) {
  SuccessCounts counts(3, 0.5), resumed(3, 0.5);
  counts.Add(2, 1, 2);
  resumed.Restore(counts.Save());
  resumed.Restore({{.prompt = 9, .successes = 1}});  // of a longer file
  EXPECT_EQ(resumed.Mean(2), counts.Mean(2));
  EXPECT_EQ(resumed.Of(2).groups, 1);
}

}  // namespace
}  // namespace tandem::trainer
