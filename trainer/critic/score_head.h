// ScoreHead: a linear layer with a few outputs on a model's final hidden states, and its optimizer:
// the value of a critic, or the scores of a reward model. Its weight is "score.weight" [K, E], as
// in transformers' ForSequenceClassification and ForTokenClassification, without a bias.
//
// Every rank holds the weight whole. Gradients are summed over the ranks before an update, so all
// ranks keep the same bits. Use from one thread. Memory: four float32 numbers per element.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/comm/rank_reducer.h"
#include "common/weights/host_tensor.h"
#include "trainer/critic/critic_options.h"
#include "trainer/optimizer/optimizer.h"

namespace tandem::trainer {

class ScoreHead {
 public:
  // A head of zeros for hidden states of `width` elements, on `device`.
  ScoreHead(int64_t num_outputs, int64_t width, at::Device device, const OptimizerOptions& options);
  ScoreHead(const ScoreHead&) = delete;

  // Takes the weight of a model directory.
  //   INVALID_ARGUMENT  of another shape than [num_outputs, width], or of no float dtype
  absl::Status Fill(const HostTensor& weight);

  // hidden [R, E] float32 -> [R, K], differentiable by `hidden` and the weight where gradients are
  // enabled.
  at::Tensor Scores(const at::Tensor& hidden) const;

  // Sums the gradient over the ranks. Errors: those of the collective.
  absl::Status SumGradients(comm::RankReducer& ranks);
  double SquaredGradNorm() const { return optimizer_->SquaredGradNorm(); }  // after SumGradients
  OptimizerUpdate Step(double squared_norm, double grad_scale);             // as AdamW::Step
  void ZeroGrads() { optimizer_->ZeroGrads(); }

  // The weight, F32, and the moments, as AdamW::State names them; views where they are on the CPU.
  std::vector<TensorSource> Weights() const;
  std::vector<TensorSource> OptimizerState() const;
  //   INVALID_ARGUMENT  one is missing or of another shape (named);  any code of read
  absl::Status RestoreWeight(std::span<const TensorSource> weights);
  absl::Status RestoreOptimizer(const std::vector<TensorSource>& state, int64_t num_updates) {
    return optimizer_->Restore(state, num_updates);
  }
  int64_t num_updates() const { return optimizer_->num_updates(); }
  int64_t bytes() const;  // of weight, gradient and moments
  const at::Tensor& weight() const { return parameters_[0].master; }  // [K, E] float32

 private:
  at::Tensor& weight() { return parameters_[0].master; }

  std::vector<NamedParameter> parameters_;  // one
  std::unique_ptr<AdamW> optimizer_;
};

}  // namespace tandem::trainer
