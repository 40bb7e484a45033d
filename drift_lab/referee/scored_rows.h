// ScoredRows: the rows that the referee judges, with what both sides and the referee say of their
// tokens. Made once, before the judging. Used by referee.cc and judge.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "drift_lab/referee/forward/referee_forward.h"
#include "drift_lab/referee/referee.h"

namespace tandem::drift {

struct ScoredRows {
  std::vector<RefereeRow> rows;             // in an order that the seed decides
  std::vector<TokenLogits> logits;          // [M] in fp32, in the order of rows and targets
  std::vector<TokenLogits> bf16;            // [M]
  std::vector<double> behaviour, proximal;  // [M] NaN where there is no value
  std::vector<int32_t> end_tokens;

  // The end of the rows from `row` on that have so many tokens, at least `least_rows` of them.
  size_t RowsFor(size_t row, int64_t num_tokens, size_t least_rows) const;
  // The number of tokens of the first `row` rows.
  size_t TokensBefore(size_t row) const;
};

absl::StatusOr<ScoredRows> ScoreRows(const RefereeModel& model, const Records& records,
                                     const TokenPairs& pairs, const RefereeOptions& options,
                                     const RefereeProgress& progress);

}  // namespace tandem::drift
