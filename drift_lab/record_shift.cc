#include "drift_lab/record_shift.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

namespace tandem::drift {
namespace {

bool Matches(std::span<const float> record, std::span<const float> replay, int shift, double floor) {
  const auto n = static_cast<int64_t>(record.size());
  for (int64_t t = std::max(0, shift); t < n + std::min(0, shift); ++t) {
    const double difference = static_cast<double>(record[static_cast<size_t>(t)]) -
                              replay[static_cast<size_t>(t - shift)];
    if (!(std::abs(difference) <= floor)) return false;
  }
  return true;
}

}  // namespace

int ShiftOf(std::span<const float> record, std::span<const float> replay, double floor) {
  if (Matches(record, replay, 0, floor)) return 0;
  for (int distance = 1; distance <= kMaxShift; ++distance) {
    if (Matches(record, replay, distance, floor)) return distance;
    if (Matches(record, replay, -distance, floor)) return -distance;
  }
  return 0;
}

ShiftEstimate EstimateShifts(std::span<const float> record, std::span<const float> replay,
                             std::span<const int64_t> offsets, double floor) {
  std::vector<int> shift;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const auto begin = static_cast<size_t>(offsets[s]);
    const auto length = static_cast<size_t>(offsets[s + 1] - offsets[s]);
    const bool tells = static_cast<int64_t>(length) >= kLeastShiftTokens;
    shift.push_back(tells ? ShiftOf(record.subspan(begin, length), replay.subspan(begin, length), floor) : 0);
  }
  return SummariseShifts(std::move(shift), offsets);
}

ShiftEstimate SummariseShifts(std::vector<int> shift, std::span<const int64_t> offsets) {
  ShiftEstimate estimate{.shift = std::move(shift)};
  std::map<int, int64_t> counts;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    estimate.num_rows += offsets[s + 1] - offsets[s] >= kLeastShiftTokens;
    if (estimate.shift[s] != 0) ++counts[estimate.shift[s]];
  }
  int64_t most = 0;
  for (const auto& [by, count] : counts) {
    estimate.num_shifted += count;
    if (count > most) estimate.most_common = by;
    most = std::max(most, count);
  }
  if (estimate.num_rows == 0) return estimate;
  estimate.fraction =
      static_cast<double>(estimate.num_shifted) / static_cast<double>(estimate.num_rows);
  estimate.interval = offpolicy::JeffreysInterval(estimate.num_shifted, estimate.num_rows, 0.95);
  return estimate;
}

}  // namespace tandem::drift
