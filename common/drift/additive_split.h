// AdditiveSplit: the gap of every token as the sum of four that have different owners (drift.md
// section 2). Pure.
//
//   delta = record + engine + cast + staleness, per token, where
//   record     log engine replay - log behaviour        what the server claims, against what it
//   computes engine     log trainer at the cast - log replay     the two forward passes at equal
//   weights cast       log trainer at its masters of v - at the cast of v staleness  log trainer
//   now - at its masters of v    v: the version that drew the token
#ifndef TANDEM_COMMON_DRIFT_ADDITIVE_SPLIT_H_
#define TANDEM_COMMON_DRIFT_ADDITIVE_SPLIT_H_

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/capture/token_record.h"
#include "common/statistics/cluster_bootstrap.h"

namespace tandem::offpolicy {

enum class SplitPart { kRecord, kEngine, kCast, kStaleness };
inline constexpr int kNumSplitParts = 4;
std::string_view SplitPartName(SplitPart part);  // "record", ...

// Log-probs of the record's tokens by the scorers in between, [T]; NaN where one could not score.
// The record's own behaviour and proximal log-probs are the two ends.
struct SplitScores {
  std::span<const float> engine;   // replay under the weights that drew the token
  std::span<const float> cast;     // trainer at those weights, as servers have them
  std::span<const float> masters;  // trainer at its masters of that version
};

// The four parts of one token; they add up to record.Delta(t) to rounding in fp64. Call with finite
// scores.
std::array<double, kNumSplitParts> SplitToken(const TokenRecord& record, const SplitScores& scores,
                                              size_t t);

struct SplitPartNumbers {
  Interval mean;      // of the part, nats
  Interval mean_abs;  // of its absolute value: parts do not add up in this one
  // mean(part * delta) / mean(delta^2): shares of the mean square that add up to 1. Negative where
  // the part works against the others. NaN when delta is 0 everywhere.
  Interval square_share;
};

struct AdditiveSplit {
  std::array<SplitPartNumbers, kNumSplitParts> parts;
  Interval mean_delta;      // what the parts' means add up to
  int64_t num_tokens = 0;   // with every score at hand
  int64_t num_missing = 0;  // unmasked tokens without
};
AdditiveSplit ComputeAdditiveSplit(const TokenRecord& record, const SplitScores& scores,
                                   const BootstrapOptions& options = {});

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_DRIFT_ADDITIVE_SPLIT_H_
