// Builds Records row by row, with every check of docs/records.md on a row. Used by the reader of
// records files and by the importers of what frameworks write, so that both hold rows to the same rules.
// Plain data: thread-compatible.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "drift_lab/records/records.h"

namespace tandem::drift {

// An element of a column that has no value (null in a file). Every other NaN is a value that was
// given and is not a number (the text "NaN"): HasValue is true for it.
inline constexpr float kNoValue = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kGivenNan = std::bit_cast<float>(0x7fc00001u);
inline bool HasValue(float element) {
  return std::bit_cast<uint32_t>(element) != std::bit_cast<uint32_t>(kNoValue);
}

// The most probable tokens of each position of a row, on one side. All empty: the row has none.
// Otherwise both counts have one entry a token, and the lists hold those of all tokens, concatenated.
struct RowTopTokens {
  std::vector<int32_t> num_ids, num_logprobs;  // [T]
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
};

// One row, as docs/records.md has it. Vectors that are empty are absent from the row.
struct RecordRow {
  std::vector<int32_t> token_ids;  // [T], at least one
  std::optional<int64_t> prompt_length;
  std::vector<uint8_t> loss_mask;                       // [T] of 0 and 1
  std::array<std::vector<float>, kNumColumns> columns;  // [T] each; kNoValue for null
  RowTopTokens behaviour_top, proximal_top;
  std::optional<int64_t> weight_version;  // all drawn tokens are of it; or facts.spans
  RowFacts facts;

  std::vector<float>& column(Column column) { return columns[static_cast<size_t>(column)]; }
  // Empties the row and keeps its memory, for the next one.
  void Clear();
};

// Life cycle: Create with a path for messages and a header, AddRow for every row, Finish once.
class RecordsBuilder {
 public:
  RecordsBuilder(std::string path, RecordsHeader header);

  // Appends `row`. After an error nothing of it has been appended, and another row may follow.
  //   INVALID_ARGUMENT  a rule of docs/records.md on rows is broken. The message is
  //                     "FIELD: expected ..., found ..."; the caller adds the place in its file.
  absl::Status AddRow(const RecordRow& row);

  int64_t num_rows() const { return records_.num_rows(); }
  const RecordsHeader& header() const { return records_.header; }

  // The records of all rows. The builder is empty afterwards.
  Records Finish();

 private:
  absl::Status CheckRow(const RecordRow& row) const;
  void AppendTop(const RowTopTokens& row, size_t num_tokens, TopTokens& tops);
  void CountNan(const RecordRow& row, size_t num_before);

  Records records_;
};

}  // namespace tandem::drift
