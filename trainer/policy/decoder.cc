#include "trainer/policy/decoder.h"

#include <utility>

namespace tandem::trainer {
namespace {

HeadCounts Heads(const ModelConfig& config) {
  return {config.num_heads, config.num_kv_heads, config.head_dim};
}

// y + residual, in float32.
at::Tensor AddResidual(at::Tensor y, const at::Tensor& residual) {
  return y.scalar_type() == at::kFloat ? y.add_(residual) : residual.add(y);
}

// `raw` and `rstd` are kept for the backward pass when the model has the norm.
at::Tensor NormAndRotate(const LayerOps& ops, const NormLayer& norm, double eps, int64_t num_heads,
                         const RotaryTable& rotary, at::Tensor projected, at::Tensor& raw,
                         at::Tensor& rstd) {
  if (norm.weight.defined()) raw = projected;
  RotatedHeads heads = ops.NormAndRotate(norm, eps, num_heads, rotary, std::move(projected));
  rstd = std::move(heads.rstd);
  return heads.value;
}

at::Tensor NormAndRotateBackward(const LayerOps& ops, const NormLayer& norm, int64_t num_heads,
                                 const RotaryTable& rotary, at::Tensor grad, const at::Tensor& raw,
                                 const at::Tensor& rstd) {
  ops.Rotate(grad, num_heads, rotary, /*backward=*/true);
  if (!norm.weight.defined()) return grad;
  at::Tensor raw_grad;
  ops.RmsNormBackward(norm, raw, rstd, grad, raw_grad);
  return raw_grad;
}

// Everything of a layer but its last product.
LayerTape LayerForward(const LayerOps& ops, const DecoderWeights& weights,
                       const DecoderLayer& layer, const RowTables& tables, at::Tensor hidden) {
  LayerTape tape;
  const ModelConfig& config = weights.config;
  Normed normed = ops.RmsNorm(layer.input_norm, hidden, config.rms_norm_eps);
  tape.input = std::move(hidden);
  tape.input_rstd = std::move(normed.rstd);
  tape.q = NormAndRotate(ops, layer.q_norm, config.rms_norm_eps, config.num_heads, tables.rotary,
                         ops.Linear(layer.q_proj, normed.value), tape.q_raw, tape.q_rstd);
  tape.k = NormAndRotate(ops, layer.k_norm, config.rms_norm_eps, config.num_kv_heads, tables.rotary,
                         ops.Linear(layer.k_proj, normed.value), tape.k_raw, tape.k_rstd);
  tape.v = ops.Linear(layer.v_proj, normed.value);
  tape.attention = ops.Attend(tape.q, tape.k, tape.v, *tables.attention, Heads(config));
  tape.middle = AddResidual(ops.Linear(layer.o_proj, tape.attention.out), tape.input);

  normed = ops.RmsNorm(layer.post_attention_norm, tape.middle, config.rms_norm_eps);
  tape.middle_rstd = std::move(normed.rstd);
  tape.gate = ops.Linear(layer.gate_proj, normed.value);
  tape.up = ops.Linear(layer.up_proj, normed.value);
  return tape;
}

at::Tensor LayerOutput(const LayerOps& ops, const DecoderLayer& layer, const LayerTape& tape) {
  return AddResidual(ops.Linear(layer.down_proj, ops.SwiGlu(tape.gate, tape.up)), tape.middle);
}

// Gradient of the layer's input from that of its output.
at::Tensor LayerBackward(const LayerOps& ops, const DecoderWeights& weights,
                         const DecoderLayer& layer, const RowTables& tables, LayerTape& tape,
                         at::Tensor grad) {
  const ModelConfig& config = weights.config;
  {
    const at::Tensor activation_grad =
        ops.LinearBackward(layer.down_proj, ops.SwiGlu(tape.gate, tape.up), grad);
    ops.SwiGluBackward(activation_grad, tape.gate, tape.up);  // now gradients of both
    const at::Tensor normed =
        ops.RmsNorm(layer.post_attention_norm, tape.middle, config.rms_norm_eps).value;
    at::Tensor normed_grad = ops.LinearBackward(layer.gate_proj, normed, tape.gate);
    normed_grad.add_(ops.LinearBackward(layer.up_proj, normed, tape.up));
    ops.RmsNormBackward(layer.post_attention_norm, tape.middle, tape.middle_rstd, normed_grad,
                        grad);
  }
  const at::Tensor attention_grad = ops.LinearBackward(layer.o_proj, tape.attention.out, grad);
  AttentionGrads qkv = ops.AttendBackward(tape.q, tape.k, tape.v, tape.attention, attention_grad,
                                          *tables.attention, Heads(config));
  const at::Tensor q_grad = NormAndRotateBackward(ops, layer.q_norm, config.num_heads,
                                                  tables.rotary, qkv.q, tape.q_raw, tape.q_rstd);
  const at::Tensor k_grad = NormAndRotateBackward(ops, layer.k_norm, config.num_kv_heads,
                                                  tables.rotary, qkv.k, tape.k_raw, tape.k_rstd);
  const at::Tensor normed = ops.RmsNorm(layer.input_norm, tape.input, config.rms_norm_eps).value;
  at::Tensor normed_grad = ops.LinearBackward(layer.q_proj, normed, q_grad);
  normed_grad.add_(ops.LinearBackward(layer.k_proj, normed, k_grad));
  normed_grad.add_(ops.LinearBackward(layer.v_proj, normed, qkv.v));
  ops.RmsNormBackward(layer.input_norm, tape.input, tape.input_rstd, normed_grad, grad);
  return grad;
}

}  // namespace

at::Tensor DecoderForward(const LayerOps& ops, const DecoderWeights& weights, const PackedRow& row,
                          DecoderTape* tape, const LayerWatch& watch) {
  const RowTables tables = {ops.MakeRotaryTable(row.positions, weights.inverse_frequencies),
                            ops.PlanAttention(row.segments)};
  if (tape != nullptr) tape->tables = tables;
  watch.begin(kEmbedding);
  at::Tensor hidden = ops.Embed(weights.embedding, row.token_ids);
  watch.end(kEmbedding);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const DecoderLayer& layer = weights.layers[i];
    watch.begin(static_cast<int64_t>(i));
    LayerTape layer_tape = LayerForward(ops, weights, layer, tables, std::move(hidden));
    hidden = LayerOutput(ops, layer, layer_tape);
    watch.end(static_cast<int64_t>(i));
    if (tape == nullptr) continue;
    if (tape->inputs_only) layer_tape = LayerTape{.input = std::move(layer_tape.input)};
    tape->layers.push_back(std::move(layer_tape));
  }
  return hidden;
}

void DecoderBackward(const LayerOps& ops, const DecoderWeights& weights, const PackedRow& row,
                     DecoderTape& tape, at::Tensor hidden_grad, const LayerWatch& watch) {
  while (!tape.layers.empty()) {
    const size_t index = tape.layers.size() - 1;
    const DecoderLayer& layer = weights.layers[index];
    LayerTape& layer_tape = tape.layers.back();
    watch.begin(static_cast<int64_t>(index));
    if (tape.inputs_only) {
      layer_tape = LayerForward(ops, weights, layer, tape.tables, std::move(layer_tape.input));
    }
    hidden_grad =
        LayerBackward(ops, weights, layer, tape.tables, layer_tape, std::move(hidden_grad));
    watch.end(static_cast<int64_t>(index));
    tape.layers.pop_back();
  }
  watch.begin(kEmbedding);
  ops.EmbedBackward(hidden_grad, row.token_ids, weights.embedding_grad);
  watch.end(kEmbedding);
}

}  // namespace tandem::trainer
