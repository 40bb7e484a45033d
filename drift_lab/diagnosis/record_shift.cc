#include "drift_lab/diagnosis/record_shift.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace tandem::drift {
namespace {

// The mean of abs(record[t] - replay[t - shift]) over tokens where both exist; infinite if one of
// them is not finite.
double DistanceAt(std::span<const float> record, std::span<const float> replay, int shift) {
  const auto n = static_cast<int64_t>(record.size());
  double sum = 0, count = 0;
  for (int64_t t = std::max(0, shift); t < n + std::min(0, shift); ++t) {
    const double difference = static_cast<double>(record[static_cast<size_t>(t)]) -
                              replay[static_cast<size_t>(t - shift)];
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    sum += std::abs(difference);
    count += 1;
  }
  return count > 0 ? sum / count : std::numeric_limits<double>::infinity();
}

}  // namespace

int ShiftOf(std::span<const float> record, std::span<const float> replay, double floor) {
  // A shifted row must be this many times nearer. It need not be equal, because there may be other
  // causes.
  constexpr double kNearer = 4;
  const double in_place = DistanceAt(record, replay, 0);
  if (!(in_place > floor) || !std::isfinite(in_place)) return 0;
  int best = 0;
  double least = in_place / kNearer;
  for (int distance = 1; distance <= kMaxShift; ++distance) {
    for (const int shift : {distance, -distance}) {
      const double at = DistanceAt(record, replay, shift);
      if (at >= least) continue;
      least = at;
      best = shift;
    }
  }
  return best;
}

ShiftEstimate EstimateShifts(std::span<const float> record, std::span<const float> replay,
                             std::span<const int64_t> offsets, double floor) {
  std::vector<int> shift;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    const auto begin = static_cast<size_t>(offsets[s]);
    const auto length = static_cast<size_t>(offsets[s + 1] - offsets[s]);
    const bool tells = static_cast<int64_t>(length) >= kLeastShiftTokens;
    shift.push_back(
        tells ? ShiftOf(record.subspan(begin, length), replay.subspan(begin, length), floor) : 0);
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
