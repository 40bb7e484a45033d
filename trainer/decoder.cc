#include "trainer/decoder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "trainer/exact_ops.h"

namespace tandem::trainer {
namespace {

HeadCounts Heads(const ModelConfig& config) {
  return {config.num_heads, config.num_kv_heads, config.head_dim};
}

at::Tensor Embed(const DecoderWeights& weights, const PackedRow& row) {
  const int64_t width = weights.config.hidden_size;
  at::Tensor hidden = at::empty({row.num_tokens(), width}, at::kFloat);
  const float* table = weights.embedding.const_data_ptr<float>();
  float* out = hidden.data_ptr<float>();
  for (int64_t t = 0; t < row.num_tokens(); ++t) {
    std::copy_n(table + row.token_ids[t] * width, width, out + t * width);
  }
  return hidden;
}

// In token order, so that repeated ids add up the same way each time.
void EmbedBackward(const DecoderWeights& weights, const PackedRow& row,
                   const at::Tensor& hidden_grad) {
  const int64_t width = weights.config.hidden_size;
  float* table = weights.embedding_grad.data_ptr<float>();
  const float* grad = hidden_grad.const_data_ptr<float>();
  for (int64_t t = 0; t < row.num_tokens(); ++t) {
    float* entry = table + row.token_ids[t] * width;
    for (int64_t e = 0; e < width; ++e) entry[e] += grad[t * width + e];
  }
}

// Norm of each head's query or key (Qwen3), then the rotary embedding. `raw` and `rstd` are kept
// for the backward pass when the model has the norm.
at::Tensor NormAndRotate(const NormLayer& norm, double eps, int64_t num_heads,
                         const RotaryTable& rotary, at::Tensor projected, at::Tensor& raw,
                         at::Tensor& rstd) {
  if (norm.weight.defined()) {
    raw = std::move(projected);
    Normed normed = RmsNorm(norm, raw, eps);
    projected = std::move(normed.value);
    rstd = std::move(normed.rstd);
  }
  Rotate(projected, num_heads, rotary, /*backward=*/false);
  return projected;
}

at::Tensor NormAndRotateBackward(const NormLayer& norm, int64_t num_heads,
                                 const RotaryTable& rotary, at::Tensor grad, const at::Tensor& raw,
                                 const at::Tensor& rstd) {
  Rotate(grad, num_heads, rotary, /*backward=*/true);
  if (!norm.weight.defined()) return grad;
  at::Tensor raw_grad;
  RmsNormBackward(norm, raw, rstd, grad, raw_grad);
  return raw_grad;
}

// Everything of a layer but its last product.
LayerTape LayerForward(const DecoderWeights& weights, const DecoderLayer& layer,
                       const PackedRow& row, const RotaryTable& rotary, at::Tensor hidden) {
  LayerTape tape;
  const ModelConfig& config = weights.config;
  Normed normed = RmsNorm(layer.input_norm, hidden, config.rms_norm_eps);
  tape.input = std::move(hidden);
  tape.input_rstd = std::move(normed.rstd);
  tape.q = NormAndRotate(layer.q_norm, config.rms_norm_eps, config.num_heads, rotary,
                         Linear(layer.q_proj, normed.value), tape.q_raw, tape.q_rstd);
  tape.k = NormAndRotate(layer.k_norm, config.rms_norm_eps, config.num_kv_heads, rotary,
                         Linear(layer.k_proj, normed.value), tape.k_raw, tape.k_rstd);
  tape.v = Linear(layer.v_proj, normed.value);
  tape.attention = weights.exact_attention
                       ? ExactAttention(tape.q, tape.k, tape.v, row.segments, Heads(config),
                                        weights.exact_bf16_kv)
                       : SegmentAttention(tape.q, tape.k, tape.v, row.segments, Heads(config));
  tape.middle = Linear(layer.o_proj, tape.attention.out).add_(tape.input);

  normed = RmsNorm(layer.post_attention_norm, tape.middle, config.rms_norm_eps);
  tape.middle_rstd = std::move(normed.rstd);
  tape.gate = Linear(layer.gate_proj, normed.value);
  tape.up = Linear(layer.up_proj, normed.value);
  return tape;
}

at::Tensor LayerOutput(const DecoderLayer& layer, const LayerTape& tape) {
  return Linear(layer.down_proj, SwiGluValue(tape.gate, tape.up)).add_(tape.middle);
}

// Gradient of the layer's input from that of its output.
at::Tensor LayerBackward(const DecoderWeights& weights, const DecoderLayer& layer,
                         const PackedRow& row, const RotaryTable& rotary, LayerTape& tape,
                         at::Tensor grad) {
  const ModelConfig& config = weights.config;
  {
    const at::Tensor activation_grad =
        LinearBackward(layer.down_proj, SwiGluValue(tape.gate, tape.up), grad);
    SwiGluGrad(activation_grad, tape.gate, tape.up);  // now gradients of both
    const at::Tensor normed =
        RmsNormValue(layer.post_attention_norm, tape.middle, config.rms_norm_eps);
    at::Tensor normed_grad = LinearBackward(layer.gate_proj, normed, tape.gate);
    normed_grad.add_(LinearBackward(layer.up_proj, normed, tape.up));
    RmsNormBackward(layer.post_attention_norm, tape.middle, tape.middle_rstd, normed_grad, grad);
  }
  const at::Tensor attention_grad = LinearBackward(layer.o_proj, tape.attention.out, grad);
  AttentionGrads qkv = SegmentAttentionBackward(tape.q, tape.k, tape.v, tape.attention,
                                                attention_grad, row.segments, Heads(config));
  const at::Tensor q_grad =
      NormAndRotateBackward(layer.q_norm, config.num_heads, rotary, qkv.q, tape.q_raw, tape.q_rstd);
  const at::Tensor k_grad = NormAndRotateBackward(layer.k_norm, config.num_kv_heads, rotary, qkv.k,
                                                  tape.k_raw, tape.k_rstd);
  const at::Tensor normed = RmsNormValue(layer.input_norm, tape.input, config.rms_norm_eps);
  at::Tensor normed_grad = LinearBackward(layer.q_proj, normed, q_grad);
  normed_grad.add_(LinearBackward(layer.k_proj, normed, k_grad));
  normed_grad.add_(LinearBackward(layer.v_proj, normed, qkv.v));
  RmsNormBackward(layer.input_norm, tape.input, tape.input_rstd, normed_grad, grad);
  return grad;
}

}  // namespace

at::Tensor DecoderForward(const DecoderWeights& weights, const PackedRow& row, DecoderTape* tape,
                          const LayerWatch& watch) {
  const RotaryTable rotary = MakeRotaryTable(row.positions, weights.inverse_frequencies);
  if (tape != nullptr) tape->rotary = rotary;
  watch.begin(kEmbedding);
  at::Tensor hidden = Embed(weights, row);
  watch.end(kEmbedding);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const DecoderLayer& layer = weights.layers[i];
    watch.begin(static_cast<int64_t>(i));
    LayerTape layer_tape = LayerForward(weights, layer, row, rotary, std::move(hidden));
    hidden = LayerOutput(layer, layer_tape);
    watch.end(static_cast<int64_t>(i));
    if (tape == nullptr) continue;
    if (tape->inputs_only) layer_tape = LayerTape{.input = std::move(layer_tape.input)};
    tape->layers.push_back(std::move(layer_tape));
  }
  return hidden;
}

void DecoderBackward(const DecoderWeights& weights, const PackedRow& row, DecoderTape& tape,
                     at::Tensor hidden_grad, const LayerWatch& watch) {
  while (!tape.layers.empty()) {
    const size_t index = tape.layers.size() - 1;
    const DecoderLayer& layer = weights.layers[index];
    LayerTape& layer_tape = tape.layers.back();
    watch.begin(static_cast<int64_t>(index));
    if (tape.inputs_only) {
      layer_tape = LayerForward(weights, layer, row, tape.rotary, std::move(layer_tape.input));
    }
    hidden_grad =
        LayerBackward(weights, layer, row, tape.rotary, layer_tape, std::move(hidden_grad));
    watch.end(static_cast<int64_t>(index));
    tape.layers.pop_back();
  }
  watch.begin(kEmbedding);
  EmbedBackward(weights, row, hidden_grad);
  watch.end(kEmbedding);
}

}  // namespace tandem::trainer
