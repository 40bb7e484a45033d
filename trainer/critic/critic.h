// Critic: the value model of PPO: what a state, the prompt and the tokens so far, is worth. Owns
// its head and, with a backbone of its own, a second model with its optimizer. Used by
// train_step.cc: values of all rows before the first update (stage 5), then an update per minibatch
// beside the policy's (stages 7 and 8).
//
// The value of token t's place is read from the hidden state that predicts token t (PackedRow::
// source); that of the state after a truncated completion from its last token. All ranks call the
// same methods in the same order. Use from one thread. Memory: with a backbone of its own that of a
// policy without a head; else the head's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"
#include "trainer/critic/critic_options.h"
#include "trainer/critic/score_head.h"
#include "trainer/metrics/step_report.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/optimizer/placed_policy.h"
#include "trainer/optimizer/row_passes.h"

namespace tandem::trainer {

// Where a row's values are read.
struct ValuePlaces {
  std::vector<int64_t> tokens;  // [n] trained tokens of the row
  std::vector<int64_t>
      hidden_at;  // [n + k] PackedRow::source of each, then the ends of truncated ones
  std::vector<size_t> truncated;  // [k] numbers in ExperienceBatch::completions
};
ValuePlaces FindValuePlaces(const ExperienceBatch& batch, size_t row);

// The values of a batch, as numbers.
struct BatchValues {
  std::vector<at::Tensor> rows;   // [microbatch][T] float32; 0 where nothing is trained
  std::vector<float> bootstraps;  // [completions] of the state after it; 0 where it ended by itself
};

// Adds one rank's sums of a minibatch, over all ranks, to those of the step. Errors: those of the
// collective.
absl::Status AddOverRanks(comm::RankReducer& ranks, const CriticNumbers& own,
                          CriticNumbers& numbers);

struct CriticSetup {
  ModelConfig config;  // with a backbone of its own: its; else the policy's
  std::vector<HostTensor>
      weights;  // of the backbone, without a head; empty: the policy's hidden states
  std::optional<HostTensor> head;  // score.weight to start from; else zeros
  PlacedPolicyOptions placing;
  bool checkpoint_activations = false;
};

class Critic {
 public:
  //   INVALID_ARGUMENT  a head of another width
  //   INTERNAL          the device has no memory for it;  others as PlacedPolicy::Create
  static absl::StatusOr<std::unique_ptr<Critic>> Create(const CriticSetup& setup,
                                                        const CriticOptions& options);

  bool shares_backbone() const { return backbone_ == nullptr; }
  ScoreHead& head() { return head_; }

  // The values of all rows, under the weights as they are, on every rank. With a backbone of its
  // own it makes the passes; else `hidden` [microbatch] are the policy's states at
  // FindValuePlaces(..).hidden_at, of this rank's rows.
  absl::StatusOr<BatchValues> Score(RowPasses& passes, std::span<const at::Tensor> hidden = {});

  // For a backbone of its own: one update on the value loss of a minibatch, the mean over its
  // trained tokens. Adds to `numbers`. An update without a finite loss or gradient is skipped and
  // counted.
  absl::Status Train(RowPasses& passes, const Minibatch& rows, const BatchValues& start,
                     const std::vector<std::vector<float>>& targets, CriticNumbers& numbers);

  // For a shared backbone: the value loss of one row of the policy's pass, scaled by the policy's
  // `scale` [T] and the coefficient; differentiable by `hidden`. Adds to `numbers`.
  at::Tensor RowLoss(const ExperienceBatch& batch, size_t row, const at::Tensor& hidden,
                     const BatchValues& start, const std::vector<float>& targets,
                     std::span<const double> scale, CriticNumbers& numbers) const;

  // Everything but the number of updates, to go on from it. Read in order; whole on rank 0.
  std::vector<TensorSource> State() const;
  int64_t num_updates() const { return head_.num_updates(); }
  absl::Status Restore(const std::vector<TensorSource>& state, int64_t num_updates);

  int64_t held_bytes() const;  // of masters, gradients and moments, on this rank

 private:
  Critic(std::unique_ptr<PlacedPolicy> backbone, const CriticSetup& setup,
         const CriticOptions& options);
  at::Tensor LossOf(const ValuePlaces& places, size_t row, const at::Tensor& hidden,
                    const BatchValues& start, const std::vector<float>& targets,
                    const at::Tensor& scale, CriticNumbers& numbers) const;
  absl::Status Update(comm::RankReducer& ranks, double loss, int64_t num_tokens,
                      CriticNumbers& numbers);

  const CriticOptions options_;
  const std::unique_ptr<PlacedPolicy> backbone_;  // null: the policy's
  ScoreHead head_;
  std::unique_ptr<AdamW> optimizer_;  // of the backbone
};

}  // namespace tandem::trainer
