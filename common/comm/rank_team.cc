#include "common/comm/rank_team.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem::comm {

absl::Status RankTeam::ShareRows(std::span<const int64_t> lengths, std::span<at::Tensor> rows) {
  if (alone()) return absl::OkStatus();
  int64_t total = 0;
  for (const int64_t length : lengths) total += length;
  at::Tensor all = at::zeros({total});
  int64_t at = 0;
  for (size_t i = 0; i < rows.size(); at += lengths[i++]) {
    if (rows[i].defined()) all.narrow(0, at, lengths[i]).copy_(rows[i]);
  }
  TANDEM_RETURN_IF_ERROR(group_->AllReduce(all));
  at = 0;
  for (size_t i = 0; i < rows.size(); at += lengths[i++]) {
    // Own rows stay the tensors they are: what is added to them elsewhere are zeros.
    if (!rows[i].defined()) rows[i] = all.narrow(0, at, lengths[i]).clone();
  }
  return absl::OkStatus();
}

absl::Status RankTeam::Reduce(std::span<double> values, Reduction reduction) {
  if (alone()) return absl::OkStatus();
  at::Tensor all = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::memcpy(all.data_ptr<double>(), values.data(), values.size_bytes());
  TANDEM_RETURN_IF_ERROR(group_->AllReduce(all, reduction));
  std::memcpy(values.data(), all.const_data_ptr<double>(), values.size_bytes());
  return absl::OkStatus();
}

absl::Status RankTeam::Sum(std::span<double> values) { return Reduce(values, Reduction::kSum); }

// A sum with zeros leaves each rank's number as it is.
absl::StatusOr<double> RankTeam::SumInOrder(double own) {
  std::vector<double> of_ranks(static_cast<size_t>(size()), 0.0);
  of_ranks[static_cast<size_t>(rank())] = own;
  TANDEM_RETURN_IF_ERROR(Sum(of_ranks));
  double sum = 0;
  for (const double of_rank : of_ranks) sum += of_rank;
  return sum;
}

absl::Status RankTeam::Max(std::span<double> values) { return Reduce(values, Reduction::kMax); }

}  // namespace tandem::comm
