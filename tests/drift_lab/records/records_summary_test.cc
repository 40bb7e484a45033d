#include "drift_lab/records/records_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "drift_lab/records/records_builder.h"
#include "tests/support/status_matchers.h"

namespace tandem::drift {
namespace {

using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A row of one prompt token and drawn tokens with these log-probs on both sides.
RecordRow RowOf(const std::vector<float>& behaviour) {
  RecordRow row;
  row.token_ids.assign(behaviour.size() + 1, 5);
  row.prompt_length = 1;
  row.column(Column::kBehaviour) = {kNoValue};
  row.column(Column::kProximal) = {kNoValue};
  for (const float value : behaviour) {
    row.column(Column::kBehaviour).push_back(value);
    row.column(Column::kProximal).push_back(-1);
  }
  return row;
}

RecordsSummary SummaryOf(const std::vector<RecordRow>& rows) {
  RecordsBuilder builder("x", {});
  for (const RecordRow& row : rows) EXPECT_THAT(builder.AddRow(row), IsOk());
  return Summarize(builder.Finish());
}

std::vector<std::string> KindsOf(const RecordsSummary& summary) {
  std::vector<std::string> kinds;
  for (const RecordsFinding& finding : summary.findings) kinds.push_back(finding.kind);
  return kinds;
}

TEST(RecordsSummary, CountsRowsTokensAndValues) {
  RecordRow versioned = RowOf({-1, -2});
  versioned.weight_version = 3;
  const RecordsSummary summary = SummaryOf({RowOf({-1}), versioned});
  EXPECT_EQ(summary.num_rows, 2);
  EXPECT_EQ(summary.num_tokens, 5);
  EXPECT_EQ(summary.num_drawn, 3);
  EXPECT_EQ(summary.num_with_versions, 1);
  ASSERT_EQ(summary.columns.size(), 2);
  EXPECT_EQ(summary.columns[0].name, "behaviour_logprobs");
  EXPECT_EQ(summary.columns[0].num_given, 3);
  EXPECT_EQ(summary.columns[0].num_given_drawn, 3);
  EXPECT_THAT(KindsOf(summary), IsEmpty());
}

TEST(RecordsSummary, NamesMarksOfMissingValuesWithCountAndPlace) {
  const RecordsSummary summary = SummaryOf({RowOf({-1, 0, 1}), RowOf({1, -9999, 1})});
  EXPECT_THAT(KindsOf(summary), ElementsAre("value_zero", "value_one", "value_missing_mark"));
  EXPECT_EQ(summary.findings[1].column, "behaviour_logprobs");
  EXPECT_EQ(summary.findings[1].count, 3);
  EXPECT_THAT(summary.findings[1].text,
              HasSubstr("exactly 1.0 at 3 of 6 drawn tokens, first in row 0, element 3."));
}

TEST(RecordsSummary, NamesValuesThatNoLogprobHas) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const RecordsSummary summary = SummaryOf({RowOf({kGivenNan, kInfinity, -kInfinity, 0.25, -1})});
  EXPECT_THAT(KindsOf(summary), ElementsAre("nan", "plus_infinity", "minus_infinity", "positive"));
  EXPECT_THAT(summary.findings[3].text, HasSubstr("the largest is 0.25"));
  EXPECT_EQ(summary.columns[0].num_nan, 1);
  EXPECT_EQ(summary.columns[0].num_infinite, 2);
}

TEST(RecordsSummary, NamesDrawnTokensAndRowsWithoutValue) {
  const RecordsSummary summary = SummaryOf({RowOf({kNoValue, kNoValue}), RowOf({-1, kNoValue})});
  ASSERT_THAT(KindsOf(summary), ElementsAre("row_without_value", "drawn_without_value"));
  EXPECT_EQ(summary.findings[0].count, 1);
  EXPECT_EQ(summary.findings[1].count, 3);
}

TEST(RecordsSummary, NamesVersionsThatGoBackwardsAndRowsThatDrewNothing) {
  RecordRow backwards = RowOf({-1, -1});
  backwards.facts.spans = {{4, 1}, {3, 1}};
  backwards.facts.proximal_version = 3;
  backwards.facts.row_id = "b";
  RecordRow nothing = RowOf({-1});
  nothing.prompt_length = 2;
  const RecordsSummary summary = SummaryOf({RowOf({-1}), backwards, nothing});
  ASSERT_THAT(KindsOf(summary),
              ElementsAre("drew_nothing", "versions_backwards", "proximal_version_behind"));
  EXPECT_EQ(summary.findings[0].text, "no token was drawn in 1 of 3 rows, first in row 2.");
  EXPECT_EQ(summary.findings[1].text,
            "version_spans: versions go backwards in 1 of 3 rows, first in row \"b\".");
}

TEST(RecordsSummary, SaysWhenASideOrEveryRowIsAbsent) {
  RecordRow one_side = RowOf({-1});
  one_side.column(Column::kProximal).clear();
  EXPECT_THAT(KindsOf(SummaryOf({one_side})), ElementsAre("column_absent"));
  EXPECT_THAT(KindsOf(SummaryOf({})), ElementsAre("no_rows"));
}

}  // namespace
}  // namespace tandem::drift
