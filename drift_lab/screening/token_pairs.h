// TokenPairs: the drawn tokens of a records file with what both sides say of them. Stage 2 of a
// verdict from records: every test of the screening reads it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "drift_lab/records/records.h"

namespace tandem::drift {

// M drawn tokens of S rows; those of row s are [offsets[s], offsets[s + 1]).
struct TokenPairs {
  // [M] Natural logs; NaN where the side has no value, or one that cannot be a log-prob.
  std::vector<float> behaviour, proximal;
  std::vector<int64_t> place;       // [M] of the token in the records
  std::vector<int64_t> offsets{0};  // [S + 1]

  int64_t num_tokens() const { return static_cast<int64_t>(place.size()); }
  int64_t num_rows() const { return static_cast<int64_t>(offsets.size()) - 1; }
  size_t begin_of(int64_t row) const {
    return static_cast<size_t>(offsets[static_cast<size_t>(row)]);
  }
  size_t end_of(int64_t row) const {
    return static_cast<size_t>(offsets[static_cast<size_t>(row) + 1]);
  }
  size_t length_of(int64_t row) const { return end_of(row) - begin_of(row); }
  std::span<const float> behaviour_of(int64_t row) const {
    return std::span(behaviour).subspan(begin_of(row), length_of(row));
  }
  std::span<const float> proximal_of(int64_t row) const {
    return std::span(proximal).subspan(begin_of(row), length_of(row));
  }
  // log proximal - log behaviour; NaN where a side has no value.
  double delta(size_t m) const { return static_cast<double>(proximal[m]) - behaviour[m]; }

  int64_t CountPairs() const;  // tokens of which both sides have a value
};

TokenPairs PairsOf(const Records& records);

// The values of a column at the drawn tokens, [M]; empty if the records do not have the column.
std::vector<float> AtDrawnTokens(const Records& records, const TokenPairs& pairs, Column column);

// "row 12" or the row's own name, for messages.
std::string NameOfRow(const Records& records, int64_t row);

}  // namespace tandem::drift
