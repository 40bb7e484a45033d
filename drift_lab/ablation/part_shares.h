// PartShares: how much of a capture's training-inference mismatch (drift) each part of the ablation
// carries, with intervals over completions. Pure.
//
// For every token, delta is the sum of its parts, so the parts of the mean add up by themselves.
// Measures of size do not, so they are shared out over the orders in which parts can be added:
//
//   square  mean(delta^2)      k3  mean(e^delta - 1 - delta)
//   tail    share of tokens with abs(delta) above the 99 % quantile of the capture
//
// The share of an ablation step is the mean of two increments of the measure: when the step is
// added after all steps on the engine's side, and when it is added after all steps on the trainer's
// side. The two increments are its bounds. The factors between engine and trainer count as one
// step, whose share is divided among them by Shapley values over the cells (token_parts.h).
// Invariant: the shares of a measure add up to 1.
//
// Shares are taken of the measures and not token by token. A rounding site makes a different
// rounding error whenever something before it changes, so switching one factor also redraws the
// errors of the others. Token by token, that would count as the factor's own effect; in a measure
// it does not.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/capture/token_record.h"
#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/ablation/token_parts.h"

namespace tandem::drift {

enum Measure : size_t { kSquare, kK3, kTail, kNumMeasures };

// A part's share of one measure, and the share when the part is switched on before all others
// (`first`) and after all others (`last`).
struct MeasureShare {
  offpolicy::Interval share;
  double first = 0, last = 0;
};

struct PartShare {
  Part part = Part::kRecord;
  offpolicy::Interval mean;  // nats; for a factor, of its Shapley value per token
  offpolicy::Interval
      mean_abs;  // nats, of the part alone; for a factor, against the trainer's cell
  std::array<MeasureShare, kNumMeasures> shares;

  const offpolicy::Interval& square() const { return shares[kSquare].share; }
};

struct PartShares {
  std::vector<PartShare> parts;                    // in the order of TokenParts
  offpolicy::Interval total_mean, total_mean_abs;  // of delta, nats
  std::array<offpolicy::Interval, kNumMeasures> totals;
  double tail_threshold = 0;  // nats
  int64_t num_tokens = 0;     // unmasked tokens that every step scored
  int64_t num_missing = 0;    // unmasked tokens that some step could not score
};

// `record` gives the mask and the completion of each token. Shares are NaN where the mean absolute
// drift is below kLogprobFloor.
PartShares ComputePartShares(const offpolicy::TokenRecord& record, const TokenParts& parts,
                             const offpolicy::BootstrapOptions& options = {});

}  // namespace tandem::drift
