// Decoder: the transformer from token ids to final hidden states, over one packed row: the forward
// and a backward written by hand, in LayerOps. Used by policy.cc. Gradients are added to the
// `*_grad` tensors. Use from one thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/model/model_config.h"
#include "trainer/experience/packed_rows.h"
#include "trainer/policy/layer_ops.h"

namespace tandem::trainer {

struct DecoderLayer {
  // ModelConfig::norms, with their offset added; undefined weights where the model has none.
  NormLayer attention_norm, attention_out_norm, mlp_norm, mlp_out_norm;
  LinearLayer q_proj, k_proj, v_proj, o_proj;
  NormLayer q_norm, k_norm;  // undefined weights unless the model has them
  LinearLayer gate_proj, up_proj, down_proj;
};

struct DecoderWeights {
  ModelConfig config;
  std::vector<RotaryEmbedding> rotary;   // RotaryEmbeddings of the model
  at::Tensor embedding, embedding_grad;  // [V, E] float32
  std::vector<DecoderLayer> layers;
  NormLayer final_norm;
  LinearLayer head;  // [V, E]; the embedding's tensor when tied
};

// The values that the backward pass of one layer reads. Values that are cheap to compute (outputs
// of norms and of the gated unit) are not kept; the backward pass computes them again.
struct LayerTape {
  at::Tensor input, input_rstd;             // [T, E], [T]
  at::Tensor q_raw, k_raw, q_rstd, k_rstd;  // before q/k norm; undefined without
  at::Tensor q, k, v;                       // [T, H * D], [T, KV * D]; after the rotary embedding
  Attention attention;
  at::Tensor attended, attended_rstd;  // [T, E] what attention_out_norm reads; undefined without
  at::Tensor middle, middle_rstd;      // [T, E] after attention's residual
  at::Tensor gate, up;                 // [T, intermediate]
  at::Tensor mlp_out, mlp_out_rstd;    // [T, E] what mlp_out_norm reads; undefined without
};

// Tables of a row that every layer reads, made once.
struct RowTables {
  std::vector<RotaryTable> rotary;  // of DecoderWeights::rotary
  std::shared_ptr<const AttentionPlan> attention;
};

struct DecoderTape {
  RowTables tables;
  // Only the `input` of a layer is kept, and the backward pass computes the rest again.
  bool inputs_only = false;
  std::vector<LayerTape> layers;
};

inline constexpr int64_t kEmbedding = -1;

// Calls before and after the weights of a layer, or of the embedding (kEmbedding), are read.
struct LayerWatch {
  std::function<void(int64_t layer)> begin, end;
};

// Hidden states before the final norm, [T, E]. Fills `tape` unless it is null.
at::Tensor DecoderForward(const LayerOps& ops, const DecoderWeights& weights, const PackedRow& row,
                          const LoraPass& lora, DecoderTape* tape, const LayerWatch& watch);

// Adds the gradients of every weight but the final norm and head. `hidden_grad` [T, E] is consumed,
// and so is the tape, layer by layer from the last to the first.
void DecoderBackward(const LayerOps& ops, const DecoderWeights& weights, const PackedRow& row,
                     const LoraPass& lora, DecoderTape& tape, at::Tensor hidden_grad,
                     const LayerWatch& watch);

}  // namespace tandem::trainer
