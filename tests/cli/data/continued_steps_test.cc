#include "cli/data/continued_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "trainer/preferences/step_data.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;

std::unique_ptr<Tokenizer> Load() {
  return *Tokenizer::Load(TANDEM_SOURCE_DIR "/tests/testdata/smollm2-tokenizer");
}

TEST(ContinuedSteps, EachPrefixIsAllStepsSoFarAndBeginsWithTheIdsOfTheOneBefore) {
  const auto tokenizer = Load();
  const auto steps = SplitCompletion("2 + 3 = 5\n5 + 4 = 9\n9", {}, *tokenizer);
  ASSERT_THAT(steps, IsOk());
  EXPECT_THAT(steps->steps, ElementsAre("2 + 3 = 5\n", "5 + 4 = 9\n", "9"));
  EXPECT_THAT(steps->prefixes,
              ElementsAre("2 + 3 = 5\n", "2 + 3 = 5\n5 + 4 = 9\n", "2 + 3 = 5\n5 + 4 = 9\n9"));
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(*tokenizer->Decode(steps->prefix_ids[s], false), steps->prefixes[s]);
    if (s == 0) continue;
    const std::vector<int32_t>& before = steps->prefix_ids[s - 1];
    ASSERT_GT(steps->prefix_ids[s].size(), before.size());
    EXPECT_TRUE(std::equal(before.begin(), before.end(), steps->prefix_ids[s].begin()));
  }
  // The ids that a process reward model is trained on.
  EXPECT_EQ(trainer::EncodeSteps(steps->steps, *tokenizer)->completion, steps->prefix_ids[2]);
}

TEST(ContinuedSteps, BetweenTagsThePrefixHasTheTagsAndTheStepHasNot) {
  const auto steps = SplitCompletion(
      "<s>one</s> <s>two</s>", {.boundary = trainer::StepBoundary::kTags, .pattern = "s"}, *Load());
  ASSERT_THAT(steps, IsOk());
  EXPECT_THAT(steps->steps, ElementsAre("one", "two"));
  EXPECT_THAT(steps->prefixes, ElementsAre("<s>one</s>", "<s>one</s> <s>two</s>"));
}

TEST(ContinuedSteps, ABlankCompletionHasNoStep) {
  EXPECT_THAT(SplitCompletion(" \n", {}, *Load()).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "\"completion\" has no step"));
}

TEST(ContinuedSteps, AHardLabelWantsOneRightContinuationAndASoftOneIsTheirShare) {
  EXPECT_EQ(LabelOf(StepLabel::kHard, 0, 8), 0);
  EXPECT_EQ(LabelOf(StepLabel::kHard, 1, 8), 1);
  EXPECT_EQ(LabelOf(StepLabel::kSoft, 0, 8), 0);
  EXPECT_EQ(LabelOf(StepLabel::kSoft, 2, 8), 0.25);
  EXPECT_EQ(LabelOf(StepLabel::kSoft, 8, 8), 1);
}

}  // namespace
}  // namespace tandem::cli
