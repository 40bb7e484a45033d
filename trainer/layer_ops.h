// Layer operations of the policy on tensors, forward and backward: what decoder.cc is written in.
// All activations are contiguous float32; a linear layer's weight may be bfloat16: then its inputs
// are cast, and products are summed in fp32 and rounded to bfloat16. Gradients of weights are added
// to what is there. Deterministic; parallel over rows or heads. Exceptions of LibTorch pass through
// (policy.cc turns them into a status).
#ifndef TANDEM_TRAINER_LAYER_OPS_H_
#define TANDEM_TRAINER_LAYER_OPS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/tensor/packed_matrix.h"
#include "trainer/packed_rows.h"

namespace tandem::trainer {

struct LinearLayer {
  at::Tensor weight;                  // [out, in] float32 or bfloat16
  at::Tensor bias;                    // [out] float32, or undefined
  at::Tensor weight_grad, bias_grad;  // float32, or undefined in a frozen policy
  // The weight in bfloat16, for the backward products of a layer whose forward product is fp32;
  // undefined: `weight`.
  at::Tensor backward_weight;
  // bfloat16 values in a float32 weight: inputs are rounded to bfloat16 and multiplied in fp32. For
  // machines whose bfloat16 products are emulated, at a fifth of the speed.
  bool round_inputs = false;
  // Set in `exact` mode: the forward product is the engine's (exact_ops.h), over this weight.
  std::shared_ptr<const PackedMatrix> exact;
  bool exact_rounds_inputs = false;
};

struct NormLayer {
  at::Tensor weight;  // [width] float32
  at::Tensor weight_grad;
};

// y = x W^T + b;  x [T, in] -> [T, out]
at::Tensor Linear(const LinearLayer& layer, const at::Tensor& x);

// Gradient of x from that of y; adds the gradients of weight and bias.
at::Tensor LinearBackward(const LinearLayer& layer, const at::Tensor& x, const at::Tensor& y_grad);

// grad [out, in] += y_grad^T x, both in the dtype the layer computes in.
void AddWeightGrad(const at::Tensor& y_grad, const at::Tensor& x, const at::Tensor& grad);

struct Normed {
  at::Tensor value;  // as x
  at::Tensor rstd;   // [rows]
};

// Over the last `weight.size(0)` elements of x, which counts as [rows, width].
Normed RmsNorm(const NormLayer& layer, const at::Tensor& x, double eps);
at::Tensor RmsNormValue(const NormLayer& layer, const at::Tensor& x, double eps);

// x_grad += (or =, when it is undefined) the gradient of x; adds that of the weight.
void RmsNormBackward(const NormLayer& layer, const at::Tensor& x, const at::Tensor& rstd,
                     const at::Tensor& value_grad, at::Tensor& x_grad);

// Cosines and sines of the row's positions, [T, D / 2].
struct RotaryTable {
  at::Tensor cosine, sine, minus_sine;  // the last turns gradients back
};
RotaryTable MakeRotaryTable(std::span<const int32_t> positions,
                            std::span<const float> inverse_frequencies);
void Rotate(at::Tensor& x, int64_t num_heads, const RotaryTable& table, bool backward);

at::Tensor SwiGluValue(const at::Tensor& gate, const at::Tensor& up);
// Overwrites gate and up with their gradients.
void SwiGluGrad(const at::Tensor& out_grad, at::Tensor& gate, at::Tensor& up);

struct HeadCounts {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
};
struct Attention {
  at::Tensor out;  // [T, H * D]
  at::Tensor lse;  // [T, H]
};
struct AttentionGrads {
  at::Tensor q, k, v;
};
// q [T, H * D], k and v [T, KV * D], after the rotary embedding.
Attention SegmentAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           std::span<const Segment> segments, const HeadCounts& heads);
AttentionGrads SegmentAttentionBackward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const Attention& attention,
                                        const at::Tensor& out_grad,
                                        std::span<const Segment> segments, const HeadCounts& heads);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_LAYER_OPS_H_
