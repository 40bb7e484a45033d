// The product of a linear layer that may have an adapter (lora_layer.h), forward and backward, as
// decoder.cc and chunked_logprobs.cc compute it. An exact layer has its adapter merged into the
// engine's matrix, and so adds nothing to the product; its gradients go through the adapter all the
// same.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

// LayerOps::Linear, LayerOps::Logits and LayerOps::LinearBackward of a layer and its adapter.
// `first_row`: of x in its batch, where the product is made in parts.
at::Tensor AdaptedLinear(const LayerOps& ops, const LinearLayer& layer, const at::Tensor& x);
at::Tensor AdaptedLogits(const LayerOps& ops, const LinearLayer& head, const at::Tensor& hidden,
                         int64_t first_row);
at::Tensor AdaptedLinearBackward(const LayerOps& ops, const LinearLayer& layer, const at::Tensor& x,
                                 const at::Tensor& y_grad, int64_t first_row = 0);

}  // namespace tandem::trainer
