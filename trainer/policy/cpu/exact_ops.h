// The two layer operations that `exact` mode computes with the engine's kernels instead of the
// policy's own: products and attention. Forward only: what they keep is what the ordinary backward
// formulas of layer_ops.h want. Same bits as the engine for the same tokens and weights, however
// rows are packed. Parallel; deterministic. Exceptions of LibTorch pass through.
#ifndef TANDEM_TRAINER_POLICY_CPU_EXACT_OPS_H_
#define TANDEM_TRAINER_POLICY_CPU_EXACT_OPS_H_

#include <ATen/core/Tensor.h>

#include <span>

#include "common/tensor/packed_matrix.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

// A weight [out, in], float32 or bfloat16, as the engine packs it.
PackedMatrix PackWeight(const at::Tensor& weight);

// x W^T without the bias, [T, in] -> [T, out] float32. `round_inputs` rounds x to bfloat16, as the
// engine does for every product of a bf16 model but the head's.
at::Tensor ExactProduct(const PackedMatrix& weight, const at::Tensor& x, bool round_inputs);

// SegmentAttention over keys and values in the engine's blocks. With `bf16_kv` they are rounded as
// the engine's cache stores them; k and v then hold the rounded values, for the backward pass.
Attention ExactAttention(const at::Tensor& q, at::Tensor& k, at::Tensor& v,
                         std::span<const Segment> segments, const HeadCounts& heads, bool bf16_kv);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_CPU_EXACT_OPS_H_
