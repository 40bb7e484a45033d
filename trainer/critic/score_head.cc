#include "trainer/critic/score_head.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/host_tensor_conversion.h"
#include "common/tensor/torch_status.h"

namespace tandem::trainer {

ScoreHead::ScoreHead(int64_t num_outputs, int64_t width, at::Device device,
                     const OptimizerOptions& options) {
  at::Tensor zeros = at::zeros({num_outputs, width}, at::TensorOptions(at::kFloat).device(device));
  zeros.requires_grad_(true);
  parameters_.push_back({kScoreWeight, zeros});
  optimizer_ = std::make_unique<AdamW>(&parameters_, options);
}

absl::Status ScoreHead::Fill(const HostTensor& weight) {
  if (weight.spec.shape != this->weight().sizes().vec()) {
    return InvalidArgument(weight.spec.ToString(), " should be a float tensor [",
                           this->weight().size(0), ", ", this->weight().size(1),
                           "], the outputs and the hidden size of the head");
  }
  TANDEM_ASSIGN_OR_RETURN(const at::Tensor values, AsMaster(weight));
  return CatchTorch("head", [&] {
    const at::NoGradGuard no_grad;
    this->weight().copy_(values);
  });
}

at::Tensor ScoreHead::Scores(const at::Tensor& hidden) const {
  return at::linear(hidden, weight());
}

absl::Status ScoreHead::SumGradients(comm::RankReducer& ranks) {
  if (ranks.alone()) return absl::OkStatus();
  at::Tensor& grad = weight().mutable_grad();
  if (!grad.defined()) grad = at::zeros_like(weight().detach());
  at::Tensor sums = grad.to(at::kCPU, at::kDouble).contiguous();
  TANDEM_RETURN_IF_ERROR(ranks.Sum({sums.data_ptr<double>(), static_cast<size_t>(sums.numel())}));
  grad.copy_(sums);
  return absl::OkStatus();
}

OptimizerUpdate ScoreHead::Step(double squared_norm, double grad_scale) {
  const at::NoGradGuard no_grad;
  return optimizer_->Step(squared_norm, grad_scale);
}

std::vector<TensorSource> ScoreHead::Weights() const {
  const TensorSpec spec = {kScoreWeight, DType::kF32, weight().sizes().vec()};
  return {{spec, [this] { return ToHostTensor(kScoreWeight, weight().detach()); }}};
}

std::vector<TensorSource> ScoreHead::OptimizerState() const {
  return optimizer_->State(
      [](size_t, const std::vector<at::Tensor>& own) -> absl::StatusOr<at::Tensor> {
        return own[0].cpu();
      });
}

absl::Status ScoreHead::RestoreWeight(std::span<const TensorSource> weights) {
  const auto found = std::ranges::find(weights, kScoreWeight,
                                       [](const TensorSource& source) { return source.spec.name; });
  if (found == weights.end()) return InvalidArgument("saved ", kScoreWeight, " is missing");
  TANDEM_ASSIGN_OR_RETURN(const HostTensor weight, found->read());
  return Fill(weight);
}

int64_t ScoreHead::bytes() const {
  return 2 * static_cast<int64_t>(weight().nbytes()) + optimizer_->state_bytes();
}

}  // namespace tandem::trainer
