// PartShares: how much of a capture's gap each part of the ladder carries, with intervals over
// completions. Pure.
//
// Parts of the mean add up by themselves: delta is the sum of its parts for every token. Measures
// of size do not, so each is shared out over orders:
//
//   square  mean(delta^2)      k3  mean(e^delta - 1 - delta)
//   tail    share of tokens with abs(delta) over the 99 % quantile of the capture
//
// A rung's share is its increment of the measure along the ladder, taken once from the engine's end
// and once from the trainer's; the share is the mean of the two, and they are its bounds. The
// factors between engine and trainer stand in the ladder as one rung; its share is divided by the
// Shapley values of the cells, measured as a gap from the trainer's cell. Shares of a measure add
// up to 1.
//
// Why not by token: a rounding site gives another rounding error whenever anything before it
// changes, so switching one factor on draws the error of the others anew. Token by token that
// counts as its own; in the measure it does not.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/capture/token_record.h"
#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/ablation/ablation.h"

namespace tandem::drift {

enum Measure : size_t { kSquare, kK3, kTail, kNumMeasures };

// Of one measure. `first` and `last`: the part switched on before all others, and after them.
struct MeasureShare {
  offpolicy::Interval share;
  double first = 0, last = 0;
};

struct PartShare {
  Part part = Part::kRecord;
  offpolicy::Interval mean;      // of the part; a factor's is its Shapley value per token
  offpolicy::Interval mean_abs;  // of the part alone: a factor's against the trainer's cell
  std::array<MeasureShare, kNumMeasures> shares;

  const offpolicy::Interval& square() const { return shares[kSquare].share; }
};

struct PartShares {
  std::vector<PartShare> parts;  // as TokenParts
  offpolicy::Interval total_mean, total_mean_abs;
  std::array<offpolicy::Interval, kNumMeasures> totals;
  double tail_threshold = 0;  // nats
  int64_t num_tokens = 0;     // with every rung at hand
  int64_t num_missing = 0;    // unmasked tokens that some rung could not score
};

// `record`: masks and completions. Shares are NaN where the gap is under kLogprobFloor.
PartShares ComputePartShares(const offpolicy::TokenRecord& record, const TokenParts& parts,
                             const offpolicy::BootstrapOptions& options = {});

}  // namespace tandem::drift
