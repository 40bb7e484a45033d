#include "trainer/run/capture_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int64_t> StepsOf(const CaptureOptions& options, int64_t num_steps) {
  const CaptureWriter writer("nowhere", options, num_steps, /*oldest_lag=*/0);
  std::vector<int64_t> steps;
  for (int64_t step = 1; step <= num_steps; ++step) {
    if (writer.Due(step)) steps.push_back(step);
  }
  return steps;
}

TEST(CaptureWriterTest, CapturesAreSpreadFromTheFirstStepToTheLast) {
  EXPECT_THAT(StepsOf({.spread = 3}, 12), ElementsAre(1, 6, 12));
  EXPECT_THAT(StepsOf({.spread = 3}, 22), ElementsAre(1, 11, 22));
  EXPECT_THAT(StepsOf({.spread = 3}, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(StepsOf({.spread = 3}, 2), ElementsAre(1, 2));
  EXPECT_THAT(StepsOf({.spread = 3}, 1), ElementsAre(1));
  EXPECT_THAT(StepsOf({.spread = 2}, 9), ElementsAre(1, 9));
  EXPECT_THAT(StepsOf({.spread = 1}, 9), ElementsAre(9));
}

TEST(CaptureWriterTest, EverySoManyStepsComeBesideThem) {
  EXPECT_THAT(StepsOf({}, 9), IsEmpty());
  EXPECT_THAT(StepsOf({.every = 4}, 9), ElementsAre(4, 8));
  EXPECT_THAT(StepsOf({.every = 4, .spread = 2}, 9), ElementsAre(1, 4, 8, 9));
}

}  // namespace
}  // namespace tandem::trainer
