// The adapter of a linear layer in the policy (common/lora/lora_shape.h): what it adds to the layer's
// product, and its gradients. The dense weight gets none. Written in ATen, and so the same on every
// device. Exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tandem::trainer {

// What a pass over one row does with adapters.
struct LoraPass {
  bool enabled = true;        // false: the model without them
  uint64_t dropout_seed = 0;  // 0: no input is left out
};

struct LoraLayer {
  at::Tensor a, b;            // [rank, in] and [out, rank] float32; undefined: no adapter
  at::Tensor a_grad, b_grad;  // float32, added to
  float scaling = 0;
  double dropout = 0;   // share of the inputs that is left out, of a pass with a seed
  uint64_t module = 0;  // its number in the model: each has masks of its own
  LoraPass pass;        // that is under way

  bool applies() const { return a.defined() && pass.enabled; }
};

// y [T, out] += s (d(x) A^T) B^T for x [T, in], in the dtype of x. d leaves inputs out and divides
// the others by 1 - dropout; which ones is a function of seed, module and `first_row`, the number of
// the first row of x.
void AddLora(const LoraLayer& layer, int64_t first_row, const at::Tensor& x, at::Tensor& y);

// Adds the gradients of A and B, and to x_grad [T, in] that of x, from y_grad [T, out], for the same
// pass, x and first_row.
void AddLoraBackward(const LoraLayer& layer, int64_t first_row, const at::Tensor& x,
                     const at::Tensor& y_grad, at::Tensor& x_grad);

}  // namespace tandem::trainer
