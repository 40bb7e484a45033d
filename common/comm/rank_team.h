// RankTeam: what data-parallel ranks tell each other during a train step. All of them hold the
// whole batch and compute their own rows of it; sums over rows and log-probs of rows go through
// here (gradients: parameter_buckets.h). Used by train_step.cc.
//
// Every rank ends with the same bits: all sums are made once, by the collective, and handed to all.
#ifndef TANDEM_COMMON_COMM_RANK_TEAM_H_
#define TANDEM_COMMON_COMM_RANK_TEAM_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/comm/collective.h"

namespace tandem::comm {

// All ranks call the same methods in the same order. Errors: those of the collective.
class RankTeam {
 public:
  // Without a group: one rank, and nothing is sent.
  explicit RankTeam(Collective* group) : group_(group) {}

  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int size() const { return group_ == nullptr ? 1 : group_->size(); }
  bool alone() const { return size() == 1; }

  // rows[i] is [lengths[i]] float32 where this rank computed it, and undefined elsewhere;
  // afterwards it is there for all i. One all-reduce of all rows.
  absl::Status ShareRows(std::span<const int64_t> lengths, std::span<at::Tensor> rows);

  // Each value becomes its sum (its largest) over the ranks.
  absl::Status Sum(std::span<double> values);
  absl::Status Max(std::span<double> values);

  // `own`, added up in the order of ranks: all get the same bits.
  absl::StatusOr<double> SumInOrder(double own);

 private:
  absl::Status Reduce(std::span<double> values, Reduction reduction);

  Collective* group_;
};

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_RANK_TEAM_H_
