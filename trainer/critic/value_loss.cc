#include "trainer/critic/value_loss.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace tandem::trainer {

ValueLossSums SumValueLoss(const ValueLossInputs& inputs, double clip) {
  const at::Tensor targets = inputs.targets.detach(), scale = inputs.scale.detach();
  const at::Tensor plain = (inputs.values - targets).square();
  if (clip <= 0) return {(scale * plain).sum() / 2};
  const at::Tensor start = inputs.start_values.detach();
  const at::Tensor clipped =
      (at::min(at::max(inputs.values, start - clip), start + clip) - targets).square();
  return {(scale * at::max(plain, clipped)).sum() / 2,
          ((clipped > plain) & (scale != 0)).sum().item<int64_t>()};
}

}  // namespace tandem::trainer
