// RowPasses: the rows of a batch spread over the ranks that make a train step together. Says which
// rank makes the pass of which row, lets all of them make equally many passes, and shares what they
// found out. Used by train_step.cc and critic.cc.
//
// All ranks call the same methods in the same order. Use from one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/comm/rank_reducer.h"
#include "trainer/experience/experience_batch.h"
#include "trainer/optimizer/placed_policy.h"

namespace tandem::trainer {

class RowPasses {
 public:
  // Both must outlive this object.
  RowPasses(const ExperienceBatch& batch, comm::RankReducer& ranks)
      : batch_(batch), ranks_(ranks), rank_of_(AssignRanks(batch, ranks.size())) {}

  const ExperienceBatch& batch() const { return batch_; }
  comm::RankReducer& ranks() { return ranks_; }
  Minibatch AllRows() const { return {0, static_cast<int64_t>(batch_.microbatches.size())}; }

  // Calls `pass` for each of this rank's rows, in order, by its number in the batch. Where another
  // rank has a row more, the model takes part without one. The first error ends it.
  using PassOfRow = std::function<absl::Status(size_t row)>;
  absl::Status Forward(PlacedPolicy& model, const Minibatch& rows, const PassOfRow& pass) const;
  // The same for passes that are differentiated. The sums of gradients over the ranks begin during
  // the backward pass of the last row; a rank without rows begins them in FinishGradients.
  absl::Status Train(PlacedPolicy& model, const Minibatch& rows, const PassOfRow& pass) const;

  // of_rows[m] is [L_m] float32 where this rank made the pass; afterwards every rank has all of
  // `rows`. L_m is the number of the row's tokens, and extra[m] more where `extra` has elements.
  absl::Status Share(const Minibatch& rows, std::vector<at::Tensor>& of_rows,
                     std::span<const int64_t> extra = {});

 private:
  // This rank's rows, in order, then nullopt for each that another rank has more.
  std::vector<std::optional<size_t>> PassesOf(const Minibatch& rows) const;

  const ExperienceBatch& batch_;
  comm::RankReducer& ranks_;
  const std::vector<int> rank_of_;  // [microbatch]
};

}  // namespace tandem::trainer
