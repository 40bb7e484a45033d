// Attention with a window or a soft cap, which flash attention and run_attention.h do not have:
// plain tensor operations over one prompt with its completions at a time, with the mask written out.
// Used by device_layer_ops.cc.
//
// Deterministic. Memory: four times [H, T, T] float32, T the tokens of the largest prompt with its
// completions. Exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

// q [T, H * D], k and v [T, KV * D] of one dtype on one device -> out as q, lse [H, T] float32.
Attention DenseAttend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      std::span<const Segment> segments, const AttentionForm& form);

// Gradients of the shapes and dtypes of q, k and v.
AttentionGrads DenseAttendBackward(const at::Tensor& out_grad, const at::Tensor& q,
                                   const at::Tensor& k, const at::Tensor& v,
                                   const Attention& attention, std::span<const Segment> segments,
                                   const AttentionForm& form);

}  // namespace tandem::trainer
