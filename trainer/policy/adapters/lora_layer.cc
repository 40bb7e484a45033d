#include "trainer/policy/adapters/lora_layer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

namespace tandem::trainer {
namespace {

bool Drops(const LoraLayer& layer) { return layer.dropout > 0 && layer.pass.dropout_seed != 0; }

// 1 / (1 - dropout) for inputs that stay and 0 for the others. Drawn on the host, so that devices
// agree.
at::Tensor Mask(const LoraLayer& layer, int64_t first_row, const at::Tensor& x) {
  at::Generator generator = at::detail::createCPUGenerator(
      layer.pass.dropout_seed + (layer.module + 1) * 0x9e3779b97f4a7c15ull +
      static_cast<uint64_t>(first_row) * 0xbf58476d1ce4e5b9ull);
  at::Tensor mask = at::empty(x.sizes(), at::kFloat);
  mask.bernoulli_(1 - layer.dropout, generator).div_(1 - layer.dropout);
  return mask.to(x.device(), x.scalar_type());
}

}  // namespace

void AddLora(const LoraLayer& layer, int64_t first_row, const at::Tensor& x, at::Tensor& y) {
  const at::ScalarType type = x.scalar_type();
  const at::Tensor seen = Drops(layer) ? x.mul(Mask(layer, first_row, x)) : x;
  const at::Tensor low = at::mm(seen, layer.a.to(type).t());
  y.add_(at::mm(low, layer.b.to(type).t()), layer.scaling);
}

void AddLoraBackward(const LoraLayer& layer, int64_t first_row, const at::Tensor& x,
                     const at::Tensor& y_grad, at::Tensor& x_grad) {
  const at::ScalarType type = x.scalar_type();
  const bool drops = Drops(layer);
  const at::Tensor mask = drops ? Mask(layer, first_row, x) : at::Tensor();
  const at::Tensor seen = drops ? x.mul(mask) : x;
  const at::Tensor a = layer.a.to(type), b = layer.b.to(type), grad = y_grad.to(type);
  const at::Tensor low = at::mm(seen, a.t());
  layer.b_grad.add_(at::mm(grad.t(), low), layer.scaling);
  const at::Tensor low_grad = at::mm(grad, b).mul_(layer.scaling);
  layer.a_grad.add_(at::mm(low_grad.t(), seen));
  at::Tensor seen_grad = at::mm(low_grad, a);
  if (drops) seen_grad.mul_(mask);
  x_grad.add_(seen_grad);
}

}  // namespace tandem::trainer
