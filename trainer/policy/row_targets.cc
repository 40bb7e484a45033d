#include "trainer/policy/row_targets.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "common/base/status_macros.h"

namespace tandem::trainer {

absl::StatusOr<Targets> FindTargets(const PackedRow& row, int64_t vocabulary) {
  Targets targets;
  for (int64_t t = 0; t < row.num_tokens(); ++t) {
    if (row.token_ids[t] < 0 || row.token_ids[t] >= vocabulary) {
      return InvalidArgument("token ", t, " of the row has id ", row.token_ids[t],
                             "; the model has ", vocabulary, " tokens");
    }
    if (!row.is_target[t]) continue;
    if (row.source[t] < 0) {
      return InvalidArgument("token ", t, " of the row is a target, and nothing comes before it");
    }
    targets.positions.push_back(t);
    targets.sources.push_back(row.source[t]);
    targets.tokens.push_back(row.token_ids[t]);
    if (!row.support.empty()) targets.support.push_back(row.support[t]);
  }
  return targets;
}

at::Tensor SpreadOverRow(const at::Tensor& values, const std::vector<int64_t>& positions,
                         int64_t num_tokens) {
  at::Tensor result = at::zeros({num_tokens});
  const at::Tensor on_host = values.cpu();
  const float* from = on_host.const_data_ptr<float>();
  float* to = result.data_ptr<float>();
  for (size_t i = 0; i < positions.size(); ++i) to[positions[i]] = from[i];
  return result;
}

at::Tensor OfTargets(const at::Tensor& of_row, const std::vector<int64_t>& positions,
                     at::Device device) {
  at::Tensor of_targets = at::empty({static_cast<int64_t>(positions.size())});
  const at::Tensor contiguous = of_row.contiguous();
  const float* from = contiguous.const_data_ptr<float>();
  float* to = of_targets.data_ptr<float>();
  for (size_t i = 0; i < positions.size(); ++i) to[i] = from[positions[i]];
  return of_targets.to(device);
}

}  // namespace tandem::trainer
