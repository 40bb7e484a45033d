// The two layer operations that `exact` mode computes with the rollout engine's kernels instead of
// the policy's own: matrix products and attention.
//
// The idea: the log-probs of trainer and rollout server differ because their sums run in different
// orders and their casts stand in different places. Here both sides call one kernel on operands of
// one layout: a weight is packed as the engine packs it, inputs are rounded where the engine rounds
// them, and keys and values lie in blocks of the engine's cache. These kernels compute each row by
// itself, in an order that does not depend on the other rows (batch invariance; He et al.,
// "Defeating Nondeterminism in LLM Inference", 2025), so the bits are the engine's however rows are
// packed.
//
// Forward only: they leave what the ordinary backward formulas of layer_ops.h read. Parallel and
// deterministic. Exceptions of LibTorch pass through.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "common/matrix/packed_matrix.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

// A weight [out, in], float32 or bfloat16, as the engine packs it in a number format.
PackedMatrix PackWeight(const at::Tensor& weight, const WeightFormat& format);

// x W^T without the bias, [T, in] -> [T, out] float32.
at::Tensor ExactProduct(const PackedMatrix& weight, const at::Tensor& x, ExactInputs inputs);

// How the engine's cache stores keys and values.
enum class ExactKv { kFp32, kBf16, kInt8, kFp8E4m3 };

// Attention over keys and values in the engine's blocks, stored as its cache stores them. k and v
// hold the stored values afterwards, for the backward pass.
Attention ExactAttention(const at::Tensor& q, at::Tensor& k, at::Tensor& v,
                         std::span<const Segment> segments, const AttentionForm& form, ExactKv kv);

}  // namespace tandem::trainer
