#include "drift_lab/screening/value_signs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/drift_lab/screening/made_records.h"

namespace tandem::drift {
namespace {

using testing::ChangeRows;
using testing::MakeRecords;

constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();

// The ids of the signs that accuse, in order.
std::vector<std::string> Accused(const Records& records) {
  TokenPairs pairs = PairsOf(records);
  std::vector<std::string> ids;
  for (const Sign& sign : ValueSigns(records, &pairs)) {
    if (sign.accuses) ids.push_back(sign.id);
  }
  return ids;
}

std::string StatementOf(const Records& records, const std::string& id) {
  TokenPairs pairs = PairsOf(records);
  for (const Sign& sign : ValueSigns(records, &pairs)) {
    if (sign.id == id) return sign.statement;
  }
  return "";
}

using Ids = std::vector<std::string>;

TEST(ValueSigns, AccuseNothingInGoodRecords) { EXPECT_EQ(Accused(MakeRecords()), Ids{}); }

TEST(ValueSigns, SayThatTheLastTokenOfEveryRowHasNoValue) {
  Records records = MakeRecords();
  ChangeRows(records, Column::kBehaviour,
             [](int64_t, std::vector<float>& row) { row.back() = kMissing; });
  EXPECT_EQ(Accused(records), Ids{"missing_values"});
  EXPECT_NE(
      StatementOf(records, "missing_values").find("each the last drawn token of its row (60 rows)"),
      std::string::npos)
      << StatementOf(records, "missing_values");
}

TEST(ValueSigns, FindSentinelsAndLeaveThemOutOfThePairs) {
  Records records = MakeRecords({.rows = 10});
  ChangeRows(records, Column::kProximal, [](int64_t row, std::vector<float>& values) {
    if (row < 2) values[3] = -9999;
  });
  TokenPairs pairs = PairsOf(records);
  const int64_t before = pairs.CountPairs();
  const std::vector<Sign> signs = ValueSigns(records, &pairs);
  ASSERT_FALSE(signs.empty());
  EXPECT_EQ(signs[0].id, "sentinel_values");
  EXPECT_EQ(signs[0].side, SignSide::kProximal);
  EXPECT_NE(signs[0].statement.find("is -9999 at 2 of"), std::string::npos) << signs[0].statement;
  EXPECT_EQ(pairs.CountPairs(), before - 2);
}

TEST(ValueSigns, FindOnesMinusInfinityAndNullsThatBecameZeros) {
  for (const auto& [value, id] :
       {std::pair(1.0F, "sentinel_values"), std::pair(-INFINITY, "sentinel_values"),
        std::pair(0.0F, "zero_values")}) {
    Records records = MakeRecords();
    ChangeRows(records, Column::kBehaviour, [v = value](int64_t row, std::vector<float>& values) {
      if (row % 4 == 0) values[6] = v;
    });
    EXPECT_EQ(Accused(records), Ids{id}) << value;
  }
}

TEST(ValueSigns, DoNotTakeTheEdgeOfADeclaredFilterForAFault) {
  Records records = MakeRecords();
  ChangeRows(records, Column::kProximal, [](int64_t row, std::vector<float>& values) {
    if (row % 8 == 0) values[6] = -INFINITY;
  });
  EXPECT_EQ(Accused(records), Ids{"sentinel_values"});
  records.header.proximal.top_p = 0.9;
  EXPECT_EQ(Accused(records), Ids{});
}

TEST(ValueSigns, FindAnEndTokenThatWasFilledInWithZero) {
  Records records = MakeRecords();
  ChangeRows(records, Column::kBehaviour,
             [](int64_t, std::vector<float>& values) { values.back() = 0; });
  EXPECT_EQ(Accused(records), Ids{"last_value_zero"});
}

TEST(ValueSigns, LeaveOutAllZerosThatEndARow) {
  Records records = MakeRecords();
  ChangeRows(records, Column::kBehaviour, [](int64_t row, std::vector<float>& values) {
    if (row % 2 == 0) std::fill(values.end() - 5, values.end(), 0.0F);
  });
  TokenPairs pairs = PairsOf(records);
  const int64_t before = pairs.CountPairs();
  const std::vector<Sign> signs = ValueSigns(records, &pairs);
  ASSERT_EQ(Accused(records), Ids{"last_value_zero"});
  EXPECT_EQ(pairs.CountPairs(), before - 30 * 5);
  EXPECT_NE(StatementOf(records, "last_value_zero").find("30 of 60 (50 %) rows (up to 5 zeros"),
            std::string::npos)
      << StatementOf(records, "last_value_zero");
}

TEST(ValueSigns, FindAnEndTokenWithAnotherLogProb) {
  Records records = MakeRecords({.rows = 120});
  ChangeRows(records, Column::kBehaviour,
             [](int64_t, std::vector<float>& values) { values.back() -= 3; });
  EXPECT_EQ(Accused(records), Ids{"end_token"});
}

TEST(ValueSigns, TellProbabilitiesAndChangedSignsFromLogProbs) {
  Records shares = MakeRecords(), negated = MakeRecords();
  ChangeRows(shares, Column::kBehaviour, [](int64_t, std::vector<float>& values) {
    for (float& x : values) x = std::exp(x);
  });
  ChangeRows(negated, Column::kProximal, [](int64_t, std::vector<float>& values) {
    for (float& x : values) x = -x;
  });
  EXPECT_EQ(Accused(shares), Ids{"probabilities"});
  EXPECT_EQ(Accused(negated), Ids{"negated"});
}

TEST(ValueSigns, SayThatRowsThatStoppedDoNotEndWithAnEndToken) {
  Records records = MakeRecords();
  records.header.eos_token_ids = {999};
  for (RowFacts& row : records.rows) row.finish_reason = "stop";
  // A stop string ends rows without an end token as well.
  EXPECT_EQ(Accused(records), Ids{});
  EXPECT_NE(StatementOf(records, "stop_tokens")
                .find("60 of 60 (100 %) rows whose finish_reason is \"stop\" do not end with"),
            std::string::npos);
  for (RowFacts& row : records.rows) row.stop_token_kept = false;
  EXPECT_EQ(StatementOf(records, "stop_tokens"), "");
}

TEST(ValueSigns, DoNotTakeZerosOfShiftedRowsForMissingValues) {
  Records records = MakeRecords({.rows = 40});
  ChangeRows(records, Column::kProximal, [](int64_t, std::vector<float>& values) {
    for (size_t t = 1; t < values.size(); t += 4) values[t] = 0;  // certain tokens, on both sides
  });
  Records both = records;
  ChangeRows(both, Column::kBehaviour, [](int64_t, std::vector<float>& values) {
    for (size_t t = 0; t + 1 < values.size(); ++t) values[t] = t % 4 == 0 ? 0 : values[t + 1];
    values.back() = kMissing;
  });
  for (const std::string& id : Accused(both)) EXPECT_NE(id, "zero_values");
}

}  // namespace
}  // namespace tandem::drift
