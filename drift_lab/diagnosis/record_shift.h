// RecordShift: completions whose recorded log-probs stand at the wrong tokens. Pure.
//
// A row is shifted by k when record[t] is several times nearer to replay[t - k] than to replay[t],
// on average over the row: nearness comes back at a shift, which no drift of a policy does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/statistics/distributions.h"

namespace tandem::drift {

inline constexpr int kMaxShift = 2;
// Rows shorter than this cannot tell a shift from a coincidence.
inline constexpr int64_t kLeastShiftTokens = 6;

// The shift of one completion, in -kMaxShift .. kMaxShift; 0: as it should be, or no shift explains
// it. `floor`: difference below which two log-probs are the same.
int ShiftOf(std::span<const float> record, std::span<const float> replay, double floor);

struct ShiftEstimate {
  std::vector<int> shift;  // [S] of each completion
  int64_t num_rows = 0;    // long enough to tell
  int64_t num_shifted = 0;
  int most_common = 0;  // of those that are not 0
  double fraction = 0;  // shifted rows; rows are drawn by themselves, so the interval is one of a
                        // share (Jeffreys)
  offpolicy::ShareInterval interval;
};

// `offsets` [S + 1]: tokens of completion s are [offsets[s], offsets[s + 1]).
ShiftEstimate EstimateShifts(std::span<const float> record, std::span<const float> replay,
                             std::span<const int64_t> offsets, double floor);

// The same from shifts [S] that are known.
ShiftEstimate SummariseShifts(std::vector<int> shift, std::span<const int64_t> offsets);

}  // namespace tandem::drift
