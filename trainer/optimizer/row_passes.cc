#include "trainer/optimizer/row_passes.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace tandem::trainer {

std::vector<std::optional<size_t>> RowPasses::PassesOf(const Minibatch& rows) const {
  std::vector<size_t> counts(static_cast<size_t>(ranks_.size()), 0);
  std::vector<std::optional<size_t>> passes;
  for (auto m = static_cast<size_t>(rows.begin); m < static_cast<size_t>(rows.end); ++m) {
    ++counts[static_cast<size_t>(rank_of_[m])];
    if (rank_of_[m] == ranks_.rank()) passes.emplace_back(m);
  }
  passes.resize(*std::ranges::max_element(counts));
  return passes;
}

absl::Status RowPasses::Forward(PlacedPolicy& model, const Minibatch& rows,
                                const PassOfRow& pass) const {
  for (const std::optional<size_t> row : PassesOf(rows)) {
    TANDEM_RETURN_IF_ERROR(row.has_value() ? pass(*row) : model.RunEmptyPass(Pass::kForward));
  }
  return absl::OkStatus();
}

absl::Status RowPasses::Train(PlacedPolicy& model, const Minibatch& rows,
                              const PassOfRow& pass) const {
  const std::vector<std::optional<size_t>> passes = PassesOf(rows);
  for (size_t i = 0; i < passes.size(); ++i) {
    if (!passes[i].has_value()) {
      TANDEM_RETURN_IF_ERROR(model.RunEmptyPass(Pass::kForward));
      TANDEM_RETURN_IF_ERROR(model.RunEmptyPass(Pass::kBackward));
      continue;
    }
    const bool last = i + 1 == passes.size() || !passes[i + 1].has_value();
    if (last) model.buckets().ExpectLastPass();
    TANDEM_RETURN_IF_ERROR(pass(*passes[i]));
  }
  return absl::OkStatus();
}

absl::Status RowPasses::Share(const Minibatch& rows, std::vector<at::Tensor>& of_rows,
                              std::span<const int64_t> extra) {
  std::vector<int64_t> lengths;
  for (auto m = static_cast<size_t>(rows.begin); m < static_cast<size_t>(rows.end); ++m) {
    lengths.push_back(batch_.microbatches[m].row.num_tokens() + (extra.empty() ? 0 : extra[m]));
  }
  return ranks_.ShareRows(
      lengths, std::span(of_rows).subspan(static_cast<size_t>(rows.begin), lengths.size()));
}

}  // namespace tandem::trainer
