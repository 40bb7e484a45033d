#include "trainer/experience/row_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::trainer {
namespace {

using ::testing::ElementsAre;

// Prompts of 3 and 2 tokens; the second completion of the second group is left out.
const std::vector<GroupLengths> kTwoGroups = {{.prompt = 3, .completions = {2, 2}},
                                              {.prompt = 2, .completions = {4, 0, 5}}};

// Each row as its parts: group:completions=tokens.
std::vector<std::string> RowsOf(int64_t budget, bool whole_groups = false) {
  std::vector<std::string> rows;
  for (const auto& parts : FillRows(kTwoGroups, 0, 2, budget, whole_groups)) {
    rows.push_back(absl::StrJoin(parts, " ", [](std::string* to, const GroupPart& part) {
      absl::StrAppend(to, part.group, ":", absl::StrJoin(part.completions, ","), "=",
                      part.num_tokens);
    }));
  }
  return rows;
}

TEST(FillRows, GroupsShareARowThatHoldsThem) {
  EXPECT_THAT(RowsOf(18), ElementsAre("0:0,1=7 1:0,2=11"));
}

TEST(FillRows, AGroupThatDoesNotFitBeginsARow) {
  EXPECT_THAT(RowsOf(17), ElementsAre("0:0,1=7", "1:0,2=11"));
}

TEST(FillRows, AGroupLargerThanARowRepeatsItsPrompt) {
  EXPECT_THAT(RowsOf(10), ElementsAre("0:0,1=7", "1:0=6", "1:2=7"));
}

TEST(FillRows, WithoutABudgetEveryCompletionHasARow) {
  EXPECT_THAT(RowsOf(0), ElementsAre("0:0=5", "0:1=5", "1:0=6", "1:2=7"));
}

TEST(FillRows, AWholeGroupHasARowOfItsOwnWhereItDoesNotFit) {
  EXPECT_THAT(RowsOf(10, /*whole_groups=*/true), ElementsAre("0:0,1=7", "1:0,2=11"));
}

TEST(FillRows, TakesTheGroupsOfARange) {
  const auto rows = FillRows(kTwoGroups, 1, 2, 18, false);
  ASSERT_EQ(rows.size(), 1u);
  ASSERT_EQ(rows[0].size(), 1u);
  EXPECT_EQ(rows[0][0].group, 1);
}

}  // namespace
}  // namespace tandem::trainer
