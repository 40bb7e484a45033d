// What a records file holds, and every finding about it that needs no model: the answer of
// `tandem drift check`. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "drift_lab/records/records.h"

namespace tandem::drift {

// One column, by tokens. "Given" includes values that are not finite.
struct ColumnSummary {
  std::string name;
  int64_t num_given = 0, num_nan = 0, num_infinite = 0;
  int64_t num_given_drawn = 0;  // on tokens that the behaviour policy drew
};

// Something that a reader of the numbers should know before trusting them.
struct RecordsFinding {
  std::string kind;    // a word for programs, such as "value_one"
  std::string column;  // empty: about rows
  int64_t count = 0;   // tokens or rows that it concerns
  std::string text;    // a sentence with the numbers and the first place
};

struct RecordsSummary {
  int64_t num_rows = 0, num_tokens = 0, num_drawn = 0;
  int64_t num_with_versions = 0;       // rows that say which weights drew their tokens
  std::vector<ColumnSummary> columns;  // those that the file has; lists of top tokens come last
  std::vector<RecordsFinding> findings;
};

RecordsSummary Summarize(const Records& records);

// The name of a row in messages: its row_id, or its place counted from 0.
std::string RowName(const Records& records, int64_t row);

}  // namespace tandem::drift
