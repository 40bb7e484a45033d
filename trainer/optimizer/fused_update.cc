#include "trainer/optimizer/fused_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_zero.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

namespace tandem::trainer {

double SumOfSquares(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return 0;
  const at::NoGradGuard no_grad;
  const at::Tensor norms = at::stack(at::_foreach_norm(tensors, 2)).cpu();
  double sum = 0;
  for (int64_t i = 0; i < norms.numel(); ++i) {
    const double norm = norms.const_data_ptr<float>()[i];
    sum += norm * norm;
  }
  return sum;
}

void FusedAdamW(const FusedTensors& tensors, const FusedCoefficients& c) {
  if (tensors.masters.empty()) return;
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = tensors.masters[0].options();
  // LibTorch wants a count of updates for each tensor. The kernels only read it, so one is shared.
  const at::Tensor count = at::full({}, static_cast<double>(c.num_updates), options);
  const std::vector<at::Tensor> counts(tensors.masters.size(), count);
  // The kernels divide gradients by this number, and the caller's scale is a factor.
  const at::Tensor divisor = at::full({}, 1 / c.gradient_scale, options);
  at::_fused_adamw_(tensors.masters, tensors.gradients, tensors.exp_avg, tensors.exp_avg_sq,
                    /*max_exp_avg_sqs=*/{}, counts, c.learning_rate, c.beta1, c.beta2,
                    c.weight_decay, c.epsilon, /*amsgrad=*/false, /*maximize=*/false, divisor);
  at::_foreach_zero_(tensors.gradients);
}

}  // namespace tandem::trainer
