// RankReducer: reductions over data-parallel ranks during a train step. Every rank holds the whole
// batch and computes its own rows of it; sums over rows, and the log-probs of rows that another
// rank computed, are exchanged here. Gradients are not: trainer/optimizer/parameter_buckets.h sums
// them. Used by train_step.cc.
//
// Every rank ends with the same bits, because the collective makes each sum once and hands it to
// all ranks. Use from one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/comm/collective.h"

namespace tandem::comm {

// All ranks call the same methods in the same order. Errors: those of the collective.
class RankReducer {
 public:
  // A null collective means one rank: then nothing is sent and every value stays as it is.
  explicit RankReducer(Collective* collective) : collective_(collective) {}

  int rank() const { return collective_ == nullptr ? 0 : collective_->rank(); }
  int size() const { return collective_ == nullptr ? 1 : collective_->size(); }
  bool alone() const { return size() == 1; }

  // rows[i] is [lengths[i]] float32 where this rank computed it, and undefined elsewhere;
  // afterwards every rank has all of them. One all-reduce of all rows.
  absl::Status ShareRows(std::span<const int64_t> lengths, std::span<at::Tensor> rows);

  // Each value becomes its sum, or its largest, over the ranks.
  absl::Status Sum(std::span<double> values);
  absl::Status Max(std::span<double> values);

  // The sum of every rank's `own`, added in the order of ranks.
  absl::StatusOr<double> SumInOrder(double own);

 private:
  absl::Status Reduce(std::span<double> values, Reduction reduction);

  Collective* collective_;
};

}  // namespace tandem::comm
