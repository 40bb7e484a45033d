#include "trainer/policy/layer_ops.h"

#include <utility>

namespace tandem::trainer {

RotatedHeads LayerOps::NormAndRotate(const NormLayer& norm, double eps, int64_t num_heads,
                                     const RotaryTable& table, at::Tensor projected) const {
  RotatedHeads heads;
  if (norm.weight.defined()) {
    Normed normed = RmsNorm(norm, projected, eps);
    heads = {std::move(normed.value), std::move(normed.rstd)};
  } else {
    heads.value = std::move(projected);
  }
  Rotate(heads.value, num_heads, table, /*backward=*/false);
  return heads;
}

std::shared_ptr<const AttentionPlan> LayerOps::PlanAttention(
    std::span<const Segment> segments) const {
  return std::make_shared<const AttentionPlan>(segments);
}

}  // namespace tandem::trainer
