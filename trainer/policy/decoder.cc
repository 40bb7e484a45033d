#include "trainer/policy/decoder.h"

#include <utility>

#include "trainer/policy/adapters/adapted_linear.h"

namespace tandem::trainer {
namespace {

// One layer of a model with what it computes on.
struct LayerContext {
  const LayerOps& ops;
  const ModelConfig& config;
  const DecoderLayer& layer;
  const RowTables& tables;
  LayerForm form;

  AttentionForm attention() const {
    return {config.num_heads,         config.num_kv_heads, config.head_dim,
            config.attention_scale(), form.window,         config.attention_softcap};
  }
  const RotaryTable& rotary() const { return tables.rotary[form.sliding_rope ? 1 : 0]; }
  double eps() const { return config.rms_norm_eps; }
};

// y + residual, in float32.
at::Tensor AddResidual(at::Tensor y, const at::Tensor& residual) {
  return y.scalar_type() == at::kFloat ? y.add_(residual) : residual.add(y);
}

// The norm of x where the layer has it, and x itself elsewhere.
Normed NormOrSame(const LayerContext& on, const NormLayer& norm, const at::Tensor& x) {
  return norm.weight.defined() ? on.ops.RmsNorm(norm, x, on.eps()) : Normed{x, {}};
}

// x_grad += the gradient of x from that of NormOrSame's value.
void NormOrSameBackward(const LayerContext& on, const NormLayer& norm, const at::Tensor& x,
                        const at::Tensor& rstd, const at::Tensor& value_grad, at::Tensor& x_grad) {
  if (norm.weight.defined()) {
    on.ops.RmsNormBackward(norm, x, rstd, value_grad, x_grad);
  } else {
    x_grad.add_(value_grad);
  }
}

// What a product adds to the residual stream: itself or its norm. `raw` and `rstd` are kept for the
// backward pass in the latter case.
at::Tensor NormedProduct(const LayerContext& on, const NormLayer& norm, at::Tensor product,
                         at::Tensor& raw, at::Tensor& rstd) {
  if (!norm.weight.defined()) return product;
  Normed normed = on.ops.RmsNorm(norm, product, on.eps());
  raw = std::move(product);
  rstd = std::move(normed.rstd);
  return normed.value;
}

// The gradient of the product from that of the residual stream.
at::Tensor ProductGrad(const LayerContext& on, const NormLayer& norm, const at::Tensor& raw,
                       const at::Tensor& rstd, const at::Tensor& grad) {
  if (!norm.weight.defined()) return grad;
  at::Tensor raw_grad;
  on.ops.RmsNormBackward(norm, raw, rstd, grad, raw_grad);
  return raw_grad;
}

// `raw` and `rstd` are kept for the backward pass when the model has the norm.
at::Tensor NormAndRotate(const LayerContext& on, const NormLayer& norm, int64_t num_heads,
                         at::Tensor projected, at::Tensor& raw, at::Tensor& rstd) {
  if (norm.weight.defined()) raw = projected;
  if (!on.form.has_rotary) {
    Normed normed = NormOrSame(on, norm, projected);
    rstd = std::move(normed.rstd);
    return normed.value;
  }
  RotatedHeads heads =
      on.ops.NormAndRotate(norm, on.eps(), num_heads, on.rotary(), std::move(projected));
  rstd = std::move(heads.rstd);
  return heads.value;
}

at::Tensor NormAndRotateBackward(const LayerContext& on, const NormLayer& norm, int64_t num_heads,
                                 at::Tensor grad, const at::Tensor& raw, const at::Tensor& rstd) {
  if (on.form.has_rotary) on.ops.Rotate(grad, num_heads, on.rotary(), /*backward=*/true);
  if (!norm.weight.defined()) return grad;
  at::Tensor raw_grad;
  on.ops.RmsNormBackward(norm, raw, rstd, grad, raw_grad);
  return raw_grad;
}

// Everything of a layer but its last product.
LayerTape LayerForward(const LayerContext& on, at::Tensor hidden) {
  LayerTape tape;
  const LayerOps& ops = on.ops;
  const DecoderLayer& layer = on.layer;
  Normed normed = NormOrSame(on, layer.attention_norm, hidden);
  tape.input = std::move(hidden);
  tape.input_rstd = std::move(normed.rstd);
  tape.q = NormAndRotate(on, layer.q_norm, on.config.num_heads,
                         AdaptedLinear(ops, layer.q_proj, normed.value), tape.q_raw, tape.q_rstd);
  tape.k = NormAndRotate(on, layer.k_norm, on.config.num_kv_heads,
                         AdaptedLinear(ops, layer.k_proj, normed.value), tape.k_raw, tape.k_rstd);
  tape.v = AdaptedLinear(ops, layer.v_proj, normed.value);
  tape.attention = ops.Attend(tape.q, tape.k, tape.v, *on.tables.attention, on.attention());
  tape.middle = AddResidual(NormedProduct(on, layer.attention_out_norm,
                                          AdaptedLinear(ops, layer.o_proj, tape.attention.out),
                                          tape.attended, tape.attended_rstd),
                            tape.input);

  normed = NormOrSame(on, layer.mlp_norm, tape.middle);
  tape.middle_rstd = std::move(normed.rstd);
  tape.gate = AdaptedLinear(ops, layer.gate_proj, normed.value);
  tape.up = AdaptedLinear(ops, layer.up_proj, normed.value);
  return tape;
}

at::Tensor LayerOutput(const LayerContext& on, LayerTape& tape) {
  at::Tensor product = AdaptedLinear(on.ops, on.layer.down_proj,
                                     on.ops.GatedUnit(on.config.activation, tape.gate, tape.up));
  return AddResidual(
      NormedProduct(on, on.layer.mlp_out_norm, std::move(product), tape.mlp_out, tape.mlp_out_rstd),
      tape.middle);
}

// From the gradient of the layer's output, in place, to that of the input of the MLP's norm.
void MlpBackward(const LayerContext& on, LayerTape& tape, at::Tensor& grad) {
  const LayerOps& ops = on.ops;
  const DecoderLayer& layer = on.layer;
  const Activation activation = on.config.activation;
  const at::Tensor product_grad =
      ProductGrad(on, layer.mlp_out_norm, tape.mlp_out, tape.mlp_out_rstd, grad);
  const at::Tensor activation_grad = AdaptedLinearBackward(
      ops, layer.down_proj, ops.GatedUnit(activation, tape.gate, tape.up), product_grad);
  ops.GatedUnitBackward(activation, activation_grad, tape.gate, tape.up);  // gradients of both
  const at::Tensor normed = NormOrSame(on, layer.mlp_norm, tape.middle).value;
  at::Tensor normed_grad = AdaptedLinearBackward(ops, layer.gate_proj, normed, tape.gate);
  normed_grad.add_(AdaptedLinearBackward(ops, layer.up_proj, normed, tape.up));
  NormOrSameBackward(on, layer.mlp_norm, tape.middle, tape.middle_rstd, normed_grad, grad);
}

// Gradient of the layer's input from that of its output.
at::Tensor LayerBackward(const LayerContext& on, LayerTape& tape, at::Tensor grad) {
  const LayerOps& ops = on.ops;
  const DecoderLayer& layer = on.layer;
  MlpBackward(on, tape, grad);
  const at::Tensor product_grad =
      ProductGrad(on, layer.attention_out_norm, tape.attended, tape.attended_rstd, grad);
  const at::Tensor attention_grad =
      AdaptedLinearBackward(ops, layer.o_proj, tape.attention.out, product_grad);
  AttentionGrads qkv = ops.AttendBackward(tape.q, tape.k, tape.v, tape.attention, attention_grad,
                                          *on.tables.attention, on.attention());
  const at::Tensor q_grad =
      NormAndRotateBackward(on, layer.q_norm, on.config.num_heads, qkv.q, tape.q_raw, tape.q_rstd);
  const at::Tensor k_grad = NormAndRotateBackward(on, layer.k_norm, on.config.num_kv_heads, qkv.k,
                                                  tape.k_raw, tape.k_rstd);
  const at::Tensor normed = NormOrSame(on, layer.attention_norm, tape.input).value;
  at::Tensor normed_grad = AdaptedLinearBackward(ops, layer.q_proj, normed, q_grad);
  normed_grad.add_(AdaptedLinearBackward(ops, layer.k_proj, normed, k_grad));
  normed_grad.add_(AdaptedLinearBackward(ops, layer.v_proj, normed, qkv.v));
  NormOrSameBackward(on, layer.attention_norm, tape.input, tape.input_rstd, normed_grad, grad);
  return grad;
}

}  // namespace

at::Tensor DecoderForward(const LayerOps& ops, const DecoderWeights& weights, const PackedRow& row,
                          DecoderTape* tape, const LayerWatch& watch) {
  const ModelConfig& config = weights.config;
  RowTables tables = {{}, ops.PlanAttention(row.segments)};
  for (const RotaryEmbedding& embedding : weights.rotary) {
    tables.rotary.push_back(
        ops.MakeRotaryTable(row.positions, embedding, config.interleaved_rotary));
  }
  if (tape != nullptr) tape->tables = tables;
  watch.begin(kEmbedding);
  at::Tensor hidden = ops.Embed(weights.embedding, row.token_ids);
  if (config.embedding_scale != 1) hidden.mul_(config.embedding_scale);
  watch.end(kEmbedding);
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const LayerContext on = {ops, config, weights.layers[i], tables, config.layer(index)};
    watch.begin(index);
    LayerTape layer_tape = LayerForward(on, std::move(hidden));
    hidden = LayerOutput(on, layer_tape);
    watch.end(index);
    if (tape == nullptr) continue;
    if (tape->inputs_only) layer_tape = LayerTape{.input = std::move(layer_tape.input)};
    tape->layers.push_back(std::move(layer_tape));
  }
  return hidden;
}

void DecoderBackward(const LayerOps& ops, const DecoderWeights& weights, const PackedRow& row,
                     DecoderTape& tape, at::Tensor hidden_grad, const LayerWatch& watch) {
  while (!tape.layers.empty()) {
    const size_t last = tape.layers.size() - 1;
    const auto index = static_cast<int64_t>(last);
    const ModelConfig& config = weights.config;
    const LayerContext on = {ops, config, weights.layers[last], tape.tables, config.layer(index)};
    LayerTape& layer_tape = tape.layers.back();
    watch.begin(index);
    if (tape.inputs_only) {
      layer_tape = LayerForward(on, std::move(layer_tape.input));
      // Its norm's input is one product more.
      if (on.layer.mlp_out_norm.weight.defined()) LayerOutput(on, layer_tape);
    }
    hidden_grad = LayerBackward(on, layer_tape, std::move(hidden_grad));
    watch.end(index);
    tape.layers.pop_back();
  }
  watch.begin(kEmbedding);
  if (weights.config.embedding_scale != 1) hidden_grad.mul_(weights.config.embedding_scale);
  if (weights.embedding_grad.defined()) {
    ops.EmbedBackward(hidden_grad, row.token_ids, weights.embedding_grad);
  }
  watch.end(kEmbedding);
}

}  // namespace tandem::trainer
