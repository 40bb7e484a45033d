// PartShares: how much of a capture's gap each part of the ladder carries, with intervals over
// completions. Pure.
//
// Of every token: delta = sum of its parts. Four ways to weigh a part:
//   mean     mean(part): parts add up to mean(delta)
//   square   mean(part delta) / mean(delta^2): shares that add up to 1
//   k3       increments of k3 along the ladder, taken from the engine's end and from the trainer's;
//            the share is their mean, the two are its bounds; shares add up to 1
//   tail     the same for the share of tokens with abs(delta) over the 99 % quantile of the capture
#ifndef TANDEM_DRIFT_LAB_PART_SHARES_H_
#define TANDEM_DRIFT_LAB_PART_SHARES_H_

#include <cstdint>
#include <vector>

#include "common/offpolicy/cluster_bootstrap.h"
#include "common/offpolicy/token_record.h"
#include "drift_lab/ladder.h"

namespace tandem::drift {

struct PartShare {
  Part part = Part::kRecord;
  offpolicy::Interval mean, mean_abs, square;
  offpolicy::Interval k3, tail;
  double k3_first = 0, k3_last = 0;      // bounds of order
  double tail_first = 0, tail_last = 0;
};

struct PartShares {
  std::vector<PartShare> parts;    // as TokenParts
  offpolicy::Interval total_mean, total_mean_abs, total_square, total_k3;
  double tail_threshold = 0;       // nats
  int64_t num_tokens = 0;          // with every rung at hand
  int64_t num_missing = 0;         // unmasked tokens that some rung could not score
};

// `record`: masks and completions. Shares are NaN where the gap is 0.
PartShares ComputePartShares(const offpolicy::TokenRecord& record, const TokenParts& parts,
                             const offpolicy::BootstrapOptions& options = {});

}  // namespace tandem::drift

#endif  // TANDEM_DRIFT_LAB_PART_SHARES_H_
