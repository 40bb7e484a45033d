// BaselineNoise: how large the importance weights of healthy tokens get from the numerical noise of
// two engines alone, and the thresholds that refuse a given share of them. It is measured on
// captures of a baseline run, whose learning rate is 0, so that both sides have the same policy at
// every version. Pure.
//
// A threshold rule has one statistic per token or per completion. Its threshold for a false-mask
// rate a is an order statistic of the n values of the baseline: the floor((n + 1) a)-th from the
// end. Invariant: the next healthy value, if exchangeable with those of the baseline, is beyond the
// threshold with probability at most a, whatever the distribution (split conformal prediction:
// Papadopoulos et al. 2002, Lei et al. 2018). With fewer than 1 / a - 1 values there is no such
// threshold. Rules with two sides use a / 2 on each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/token_record.h"

namespace tandem::drift {

// With w = e^delta of a token, and T tokens in a completion.
enum class ThresholdRule {
  kNone,
  kTokenCeiling,
  kTokenBounds,  // w
  kProductCeiling,
  kProductBounds,  // e^(sum delta)
  kGeometricCeiling,
  kGeometricBounds,
  kGeometricFloor,  // e^(mean delta)
  kLengthAware,     // abs(mean delta + s^2 / 2) sqrt(T) / s
  kK3Mean,          // mean of w - 1 - delta
  kK3Both,          // the largest w - 1 - delta, and the mean
  kSmallest,        // the smallest w
  kClipRange,       // w, as distances from 1: "low:high"
};

struct BaselineNoise {
  // Sorted values over all tokens, or over all completions, with finite log-probs.
  std::vector<double> token_w, product, geometric, smallest_w, largest_k3, mean_k3, length_aware;
  double standard_deviation = 0;  // s, of delta over tokens, nats

  int64_t num_tokens() const { return static_cast<int64_t>(token_w.size()); }
  int64_t num_completions() const { return static_cast<int64_t>(product.size()); }
};

BaselineNoise MeasureBaseline(std::span<const offpolicy::TokenRecord> baselines);

// The threshold as text (replay_variants.h), within what the settings accept: ceilings and upper
// bounds are at least 1, lower bounds at most 1.
//   FAILED_PRECONDITION  there are too few tokens or completions for `rate` (the message says how
//                        many it takes); the baseline's drift is exactly 0 or, for k3, below what
//                        fp64 resolves
absl::StatusOr<std::string> BaselineThreshold(const BaselineNoise& noise, ThresholdRule rule,
                                              double rate);

}  // namespace tandem::drift
