#include "trainer/policy/adapters/adapted_linear.h"

namespace tandem::trainer {
namespace {

void AddAdapter(const LinearLayer& layer, const at::Tensor& x, int64_t first_row, at::Tensor& y) {
  if (layer.lora.applies() && layer.exact == nullptr) AddLora(layer.lora, first_row, x, y);
}

}  // namespace

at::Tensor AdaptedLinear(const LayerOps& ops, const LinearLayer& layer, const at::Tensor& x) {
  at::Tensor y = ops.Linear(layer, x);
  AddAdapter(layer, x, 0, y);
  return y;
}

at::Tensor AdaptedLogits(const LayerOps& ops, const LinearLayer& head, const at::Tensor& hidden,
                         int64_t first_row) {
  at::Tensor logits = ops.Logits(head, hidden);
  AddAdapter(head, hidden, first_row, logits);
  return logits;
}

at::Tensor AdaptedLinearBackward(const LayerOps& ops, const LinearLayer& layer, const at::Tensor& x,
                                 const at::Tensor& y_grad, int64_t first_row) {
  at::Tensor x_grad = ops.LinearBackward(layer, x, y_grad);
  if (layer.lora.applies()) AddLoraBackward(layer.lora, first_row, x, y_grad, x_grad);
  return x_grad;
}

}  // namespace tandem::trainer
