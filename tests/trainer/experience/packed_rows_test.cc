#include "trainer/experience/packed_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;

const std::vector<int32_t> kPrompt = {10, 11, 12}, kFirst = {20, 21}, kSecond = {30};

PackedRow TwoCompletions() {
  const std::vector<GroupTokens> groups = {{.prompt = kPrompt, .completions = {kFirst, kSecond}}};
  return PackRow(groups).value();
}

TEST(PackRowTest, PutsThePromptOnceAndItsCompletionsBehind) {
  const PackedRow row = TwoCompletions();
  EXPECT_THAT(row.token_ids, ElementsAre(10, 11, 12, 20, 21, 30));
  EXPECT_THAT(row.positions, ElementsAre(0, 1, 2, 3, 4, 3));
  EXPECT_THAT(row.is_target, ElementsAre(false, false, false, true, true, true));
  EXPECT_THAT(row.completion_segments, ElementsAre(1, 2));
  ASSERT_EQ(row.segments.size(), 3u);
  EXPECT_EQ(row.segments[2].begin, 5);
  EXPECT_EQ(row.segments[2].prefix_begin, 0);
  EXPECT_EQ(row.segments[2].prefix_end, 3);
}

TEST(PackRowTest, Bug09FirstTokenOfEachCompletionIsPredictedByThePromptsLastRow) {
  EXPECT_THAT(TwoCompletions().source, ElementsAre(-1, 0, 1, 2, 3, 2));
}

TEST(PackRowTest, StartsEachGroupAtPositionZero) {
  const std::vector<GroupTokens> groups = {{.prompt = kSecond, .completions = {kFirst}},
                                           {.prompt = kFirst, .completions = {kSecond}}};
  const auto row = PackRow(groups);
  ASSERT_THAT(row, IsOk());
  EXPECT_THAT(row->positions, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(row->source, ElementsAre(-1, 0, 1, -1, 3, 4));
  EXPECT_THAT(row->completion_segments, ElementsAre(1, 3));
}

TEST(PackRowTest, RefusesAnEmptyPromptOrCompletionByItsPlace) {
  const std::vector<GroupTokens> no_prompt = {{.prompt = {}, .completions = {kFirst}}};
  EXPECT_THAT(PackRow(no_prompt),
              FailsWith(absl::StatusCode::kInvalidArgument, "group 0 of the row: empty prompt"));
  const std::vector<GroupTokens> empty = {{.prompt = kPrompt, .completions = {kFirst, {}}}};
  EXPECT_THAT(PackRow(empty),
              FailsWith(absl::StatusCode::kInvalidArgument, "completion 1 has no tokens"));
}

TEST(SingleSequenceRowTest, MakesEveryTokenButTheFirstATarget) {
  const PackedRow row = SingleSequenceRow(kPrompt);
  EXPECT_THAT(row.is_target, ElementsAre(false, true, true));
  EXPECT_THAT(row.source, ElementsAre(-1, 0, 1));
  EXPECT_EQ(row.segments.size(), 1u);
}

}  // namespace
}  // namespace tandem::trainer
