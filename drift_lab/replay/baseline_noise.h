// NullFloor: what a capture looks like when nothing is wrong but the noise of two engines, and the
// thresholds that refuse a stated share of it. Measured on null runs: learning rate 0, so that both
// sides have the same policy whatever the version. Pure.
//
// A rule has one statistic per token or per completion. Its threshold for a false-mask rate a is an
// order statistic of the n values of the null: the floor((n + 1) a)-th from the end. Then the next
// healthy one, exchangeable with those of the null, is beyond it with probability a at most,
// whatever the distribution (split conformal prediction: Papadopoulos et al. 2002, Lei et al.
// 2018); with fewer than 1 / a - 1 values there is no such threshold. Rules with two sides take a /
// 2 on each.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/token_record.h"

namespace tandem::drift {

// delta, w = e^delta of a token; T tokens of a completion.
enum class NullRule {
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
  kK3Both,          // the largest of them, and their mean
  kSmallest,        // the smallest w
  kClipRange,       // w, as distances from 1: "low:high"
};

struct NullFloor {
  // Each sorted; of all tokens, or of all completions, with finite log-probs.
  std::vector<double> token_w, product, geometric, smallest_w, largest_k3, mean_k3, length_aware;
  double noise = 0;  // s: standard deviation of delta over tokens, nats

  int64_t num_tokens() const { return static_cast<int64_t>(token_w.size()); }
  int64_t num_completions() const { return static_cast<int64_t>(product.size()); }
};

NullFloor MeasureNull(std::span<const offpolicy::TokenRecord> nulls);

// The threshold as text (replay_methods.h), within what the settings accept: ceilings and upper
// bounds at least 1, lower bounds at most 1.
//   FAILED_PRECONDITION  too few tokens or completions for `rate` (how many it takes); a null whose
//   gap
//                        is exactly 0 or, for k3, below what fp64 resolves
absl::StatusOr<std::string> NullThreshold(const NullFloor& floor, NullRule rule, double rate);

}  // namespace tandem::drift
