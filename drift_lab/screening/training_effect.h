// TrainingEffect: what the difference between the two policies does to training, whatever its cause.
// Pure. w = e^delta is the weight of an exact correction; delta = log proximal - log behaviour.
#pragma once

#include <cstdint>

#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/records/records.h"
#include "drift_lab/screening/token_pairs.h"

namespace tandem::drift {

inline constexpr double kTruncateAt = 2;  // of truncated importance sampling
inline constexpr double kClipBelow = 0.8, kClipAbove = 1.2;

// Intervals are at 95 %, over rows as clusters.
struct TrainingEffect {
  int64_t num_tokens = 0;  // with values on both sides
  int64_t num_rows = 0;
  offpolicy::Interval mean_abs_delta, mean_delta, k1, k3, mean_w;
  offpolicy::Interval ess;        // (sum w)^2 / (N sum w^2)
  offpolicy::Interval truncated;  // share of tokens with w > 2
  offpolicy::Interval clipped;    // share with w outside [0.8, 1.2]
  // How much of a GRPO gradient is missing (above 0) or too much where it is taken without a
  // correction, by sign of the advantage: sum |A| (w - 1) / sum |A|. Unknown without advantages.
  bool has_advantages = false;
  offpolicy::Interval bias_positive, bias_negative;
  double abs_delta_p50 = 0, abs_delta_p99 = 0, abs_delta_p999 = 0, max_abs_delta = 0;
};

TrainingEffect EffectOnTraining(const Records& records, const TokenPairs& pairs, uint64_t seed);

}  // namespace tandem::drift
