#include "common/comm/rank_reducer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <vector>

#include "common/base/status_macros.h"

namespace tandem::comm {

absl::Status RankReducer::ShareRows(std::span<const int64_t> lengths, std::span<at::Tensor> rows) {
  if (alone()) return absl::OkStatus();
  int64_t total = 0;
  for (const int64_t length : lengths) total += length;
  at::Tensor all = at::zeros({total});
  int64_t at = 0;
  for (size_t i = 0; i < rows.size(); at += lengths[i++]) {
    if (rows[i].defined()) all.narrow(0, at, lengths[i]).copy_(rows[i]);
  }
  TANDEM_RETURN_IF_ERROR(collective_->AllReduce(all));
  at = 0;
  for (size_t i = 0; i < rows.size(); at += lengths[i++]) {
    // This rank's own rows stay as they are: the other ranks added zeros to them.
    if (!rows[i].defined()) rows[i] = all.narrow(0, at, lengths[i]).clone();
  }
  return absl::OkStatus();
}

absl::Status RankReducer::Reduce(std::span<double> values, Reduction reduction) {
  if (alone()) return absl::OkStatus();
  at::Tensor all = at::empty({static_cast<int64_t>(values.size())}, at::kDouble);
  std::memcpy(all.data_ptr<double>(), values.data(), values.size_bytes());
  TANDEM_RETURN_IF_ERROR(collective_->AllReduce(all, reduction));
  std::memcpy(values.data(), all.const_data_ptr<double>(), values.size_bytes());
  return absl::OkStatus();
}

absl::Status RankReducer::Sum(std::span<double> values) { return Reduce(values, Reduction::kSum); }

// Each rank fills one place and leaves zeros in the others, so the all-reduce hands every rank the
// numbers of all ranks unchanged, and all add them in one order.
absl::StatusOr<double> RankReducer::SumInOrder(double own) {
  std::vector<double> rank_values(static_cast<size_t>(size()), 0.0);
  rank_values[static_cast<size_t>(rank())] = own;
  TANDEM_RETURN_IF_ERROR(Sum(rank_values));
  double sum = 0;
  for (const double value : rank_values) sum += value;
  return sum;
}

absl::Status RankReducer::Max(std::span<double> values) { return Reduce(values, Reduction::kMax); }

}  // namespace tandem::comm
