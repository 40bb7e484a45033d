// LayerOps: the operations of a layer on tensors, forward and backward. decoder.cc, policy.cc and
// chunked_logprobs.cc are written in them. There is one implementation for the CPU
// (cpu_layer_ops.h) and one for a GPU (cuda/device_layer_ops.h).
//
// Tensors are contiguous, on device(). "Activations" are the tensors between layers: float32 on the
// CPU, on a GPU of the dtype that linear layers compute in; the residual stream is float32
// everywhere. A linear layer's weight may be bfloat16: then its inputs are cast, and products are
// summed in fp32 and rounded to bfloat16. Gradients of weights are float32 and added to what is
// there. Deterministic. Use from one thread. Exceptions of LibTorch pass through (policy.cc turns
// them into a status).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/matrix/packed_matrix.h"
#include "common/model/model_config.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/adapters/lora_layer.h"
#include "trainer/policy/attention_form.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

// How the engine's products take their inputs (exact_ops.h): as they are; rounded to bfloat16;
// quantised to int8 with a scale for each row, or to 16 bits (StoreInt8Operand, StoreInt16Operand).
enum class ExactInputs { kAsTheyAre, kBf16, kInt8, kInt16 };

struct LinearLayer {
  at::Tensor weight;                  // [out, in] float32 or bfloat16
  at::Tensor bias;                    // [out] float32, or undefined
  at::Tensor weight_grad, bias_grad;  // float32, or undefined where the weights are frozen
  // The weight in bfloat16, for the backward products of a layer whose forward product is fp32;
  // undefined: `weight`.
  at::Tensor backward_weight;
  // bfloat16 values in a float32 weight: inputs are rounded to bfloat16 and multiplied in fp32. For
  // machines whose bfloat16 products are emulated, at a fifth of the speed.
  bool round_inputs = false;
  // A head's logits y become softcap tanh(y / softcap); 0: they stay.
  float softcap = 0;
  // Set in `exact` mode: the forward product is the engine's (exact_ops.h), over this weight.
  std::shared_ptr<const PackedMatrix> exact;
  ExactInputs exact_inputs = ExactInputs::kAsTheyAre;
  // What is added to the product, unless `exact` has it merged already.
  LoraLayer lora;
};

struct NormLayer {
  at::Tensor weight;  // [width] float32
  at::Tensor weight_grad;
  bool in_fp32 = false;  // the value is float32 whatever activations are
};

struct Normed {
  at::Tensor value;  // as x
  at::Tensor rstd;   // [rows] float32
};

// Cosines and sines of the row's positions, times RotaryEmbedding::scale, [T, rotated / 2] float32.
struct RotaryTable {
  at::Tensor cosine, sine;
  at::Tensor minus_sine;  // where kernels turn gradients back by it
  // Their inputs, for an implementation whose kernels compute the cosines and sines again.
  at::Tensor positions, inverse_frequencies;  // [T] int32, [rotated / 2] float32
  bool interleaved = false;                   // RotationForm::interleaved
};

// A projection's heads as attention takes them.
struct RotatedHeads {
  at::Tensor value;  // [T, H * D]
  at::Tensor rstd;   // [T * H] of the norm; undefined without one
};

// Which tokens of a packed row attend to which, as an implementation reads it in every layer.
struct AttentionPlan {
  explicit AttentionPlan(std::span<const Segment> of) : segments(of.begin(), of.end()) {}
  virtual ~AttentionPlan() = default;
  const std::vector<Segment> segments;
};

struct Attention {
  at::Tensor out;  // [T, H * D]
  at::Tensor lse;  // float32, as the implementation lays it out
};
struct AttentionGrads {
  at::Tensor q, k, v;
};

// The softmax of row r is over support[r] where that has ids. No elements: every softmax is over
// the whole vocabulary.
using Supports = std::span<const std::span<const int32_t>>;

// One number for each row of logits: [R] float32 each.
struct RowLogprobs {
  at::Tensor logprobs;  // of the rows' tokens
  at::Tensor entropies;
  at::Tensor lse;  // of the tempered logits; for the backward pass
};

// The gradient by rows' entropies: [R] float32 each, as Logprobs returned the entropies. Undefined
// tensors: none.
struct EntropyGrad {
  at::Tensor entropies, grad;
};

class LayerOps {
 public:
  virtual ~LayerOps() = default;

  virtual at::Device device() const = 0;

  // table [V, E] float32 -> [T, E] float32, and the gradient of the table from that.
  virtual at::Tensor Embed(const at::Tensor& table, std::span<const int32_t> ids) const = 0;
  virtual void EmbedBackward(const at::Tensor& hidden_grad, std::span<const int32_t> ids,
                             const at::Tensor& table_grad) const = 0;

  // rows [T, E] -> those at `indices`, [R, E]; and [T, E] of zeros plus values[i] at indices[i],
  // which may repeat.
  virtual at::Tensor TakeRows(const at::Tensor& rows, std::span<const int64_t> indices) const = 0;
  virtual at::Tensor SpreadRows(const at::Tensor& values, std::span<const int64_t> indices,
                                int64_t num_rows) const = 0;

  // y = x W^T + b;  x [T, in] of any float dtype -> [T, out] activations
  virtual at::Tensor Linear(const LinearLayer& layer, const at::Tensor& x) const = 0;
  // Gradient of x from that of y; adds the gradients of weight and bias.
  virtual at::Tensor LinearBackward(const LinearLayer& layer, const at::Tensor& x,
                                    const at::Tensor& y_grad) const = 0;

  // Over the last `weight.size(0)` elements of x, which counts as [rows, width].
  virtual Normed RmsNorm(const NormLayer& layer, const at::Tensor& x, double eps) const = 0;
  // x_grad += (or =, when it is undefined) the gradient of x; adds that of the weight.
  virtual void RmsNormBackward(const NormLayer& layer, const at::Tensor& x, const at::Tensor& rstd,
                               const at::Tensor& value_grad, at::Tensor& x_grad) const = 0;

  virtual RotaryTable MakeRotaryTable(std::span<const int32_t> positions,
                                      const RotaryEmbedding& embedding, bool interleaved) const = 0;
  // Norm of queries or keys, over each head or over all of them, by the size of the weight (a layer
  // without one: none), then the rotary embedding. May overwrite `projected` [T, H * D] when there
  // is no norm.
  virtual RotatedHeads NormAndRotate(const NormLayer& norm, double eps, int64_t num_heads,
                                     const RotaryTable& table, at::Tensor projected) const;
  // In place.
  virtual void Rotate(at::Tensor& x, int64_t num_heads, const RotaryTable& table,
                      bool backward) const = 0;

  // f(gate) * up for the function f of the activation.
  virtual at::Tensor GatedUnit(Activation activation, const at::Tensor& gate,
                               const at::Tensor& up) const = 0;
  // Overwrites gate and up with their gradients.
  virtual void GatedUnitBackward(Activation activation, const at::Tensor& out_grad,
                                 at::Tensor& gate, at::Tensor& up) const = 0;

  // x -> cap tanh(x / cap), in place; float32.
  virtual void SoftCap(at::Tensor& x, float cap) const = 0;

  // The result is for Attend and AttendBackward of the same implementation.
  virtual std::shared_ptr<const AttentionPlan> PlanAttention(
      std::span<const Segment> segments) const;

  // q [T, H * D], k and v [T, KV * D], after the rotary embedding. k and v may be rounded: they are
  // to be handed to the backward pass as they are left.
  virtual Attention Attend(const at::Tensor& q, at::Tensor& k, at::Tensor& v,
                           const AttentionPlan& plan, const AttentionForm& form) const = 0;
  virtual AttentionGrads AttendBackward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const Attention& attention,
                                        const at::Tensor& out_grad, const AttentionPlan& plan,
                                        const AttentionForm& form) const = 0;

  // hidden [R, E] float32 -> logits [R, V] float32. Backward: LinearBackward.
  virtual at::Tensor Logits(const LinearLayer& head, const at::Tensor& hidden) const = 0;
  // The number of rows of logits to compute at a time.
  virtual int64_t logit_chunk_rows() const = 0;
  // log softmax(logits / temperature)[tokens]; always fp32.
  virtual RowLogprobs Logprobs(const at::Tensor& logits, std::span<const int64_t> tokens,
                               double temperature, Supports support) const = 0;
  // Gradient of the logits, for LinearBackward, from that of the log-probs, [R] float32, and of the
  // entropies. Consumes the logits.
  virtual at::Tensor LogprobsBackward(at::Tensor logits, std::span<const int64_t> tokens,
                                      double temperature, Supports support, const at::Tensor& lse,
                                      const at::Tensor& logprobs_grad,
                                      const EntropyGrad& entropy = {}) const = 0;

  // The master of a parameter as a push sends it to a bf16 server: weight_cast.h, bit for bit.
  virtual at::Tensor CastToBf16(const std::string& name, const at::Tensor& master,
                                Rounding rounding) const = 0;
};

}  // namespace tandem::trainer
