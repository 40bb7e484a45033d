// ShiftEstimate: completions whose recorded log-probs are at the wrong tokens. Pure.
//
// A row is shifted by k if record[t] is several times nearer to replay[t - k] than to replay[t], on
// average over the row. Other faults change log-probs in place and do not make them near again at a
// shift.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/statistics/distributions.h"

namespace tandem::drift {

inline constexpr int kMaxShift = 2;
// In shorter rows a shift cannot be told from a coincidence.
inline constexpr int64_t kLeastShiftTokens = 6;

// The shift of one completion, in -kMaxShift .. kMaxShift; 0 if the row is in place or no shift
// explains it. Two log-probs that differ by less than `floor` are considered equal.
int ShiftOf(std::span<const float> record, std::span<const float> replay, double floor);

struct ShiftEstimate {
  std::vector<int> shift;  // [S]
  int64_t num_rows = 0;    // rows that are long enough to tell
  int64_t num_shifted = 0;
  int most_common = 0;                // among the shifts that are not 0
  double fraction = 0;                // of rows that are shifted
  offpolicy::ShareInterval interval;  // Jeffreys interval of the fraction, as rows are independent
};

// The tokens of completion s are [offsets[s], offsets[s + 1]); `offsets` is [S + 1].
ShiftEstimate EstimateShifts(std::span<const float> record, std::span<const float> replay,
                             std::span<const int64_t> offsets, double floor);

// The same from known shifts [S].
ShiftEstimate SummariseShifts(std::vector<int> shift, std::span<const int64_t> offsets);

}  // namespace tandem::drift
