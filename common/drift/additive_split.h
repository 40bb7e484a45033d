// AdditiveSplit: splits the drift of every token into the sum of four parts with different causes
// (docs/attribution.md). Pure.
//
//   delta = record + engine + cast + staleness, per token; v is the version that sampled it
//
//   record     log engine replay - log behaviour            the server's record against its engine
//   engine     log trainer at cast of v - log replay        the two forward passes, equal weights
//   cast       log trainer at masters of v - at cast of v   the rounding of pushed weights
//   staleness  log trainer now - at masters of v            the updates since then
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/capture/token_record.h"
#include "common/statistics/cluster_bootstrap.h"

namespace tandem::offpolicy {

enum class SplitPart { kRecord, kEngine, kCast, kStaleness };
inline constexpr int kNumSplitParts = 4;
std::string_view SplitPartName(SplitPart part);  // "record", ...

// Log-probs of the record's tokens by the scorers between the two ends, [T]; NaN where a scorer has
// none. The two ends are the record's own behaviour and proximal log-probs.
struct SplitScores {
  std::span<const float> engine;   // engine replay under the weights that sampled the token
  std::span<const float> cast;     // trainer at those weights, cast as servers have them
  std::span<const float> masters;  // trainer at its fp32 masters of that version
};

// The four parts of one token. They add up to record.Delta(t), up to fp64 rounding. The scores must
// be finite.
std::array<double, kNumSplitParts> SplitToken(const TokenRecord& record, const SplitScores& scores,
                                              size_t t);

struct SplitPartNumbers {
  Interval mean;      // mean of the part, nats
  Interval mean_abs;  // mean absolute value; these do not add up over the parts
  // mean(part * delta) / mean(delta^2): shares of the mean square, which add up to 1. A share is
  // negative where the part works against the others, and NaN when delta is 0 everywhere.
  Interval square_share;
};

struct AdditiveSplit {
  std::array<SplitPartNumbers, kNumSplitParts> parts;
  Interval mean_delta;      // the sum of the parts' means
  int64_t num_tokens = 0;   // tokens with all scores
  int64_t num_missing = 0;  // unmasked tokens that lack a score
};
AdditiveSplit ComputeAdditiveSplit(const TokenRecord& record, const SplitScores& scores,
                                   const BootstrapOptions& options = {});

}  // namespace tandem::offpolicy
