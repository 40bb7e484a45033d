// ModelConfig: the config.json of a Hugging Face directory, reduced to what a dense decoder needs.
// The families are those of model_family.h. It reads the spelling of transformers 4 (rope_theta,
// rope_scaling, torch_dtype) and that of transformers 5 (rope_parameters, dtype). Unsupported
// features are errors that name the feature.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/rope.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// The function of the gate in a layer's gated linear unit, down(f(gate) * up).
enum class Activation {
  kSilu,      // x sigmoid(x): SwiGLU
  kGeluTanh,  // the tanh form of GELU (Hendrycks and Gimpel 2016): GEGLU
};

// RMS norms of queries and keys before the rotary embedding.
enum class QkNorm {
  kNone,
  kPerHead,        // each head of head_dim (Qwen3, Gemma 3)
  kPerProjection,  // all heads as one row (OLMo 2)
};

// Names of a layer's RMS norms: before attention and before the MLP, and of what each of both adds
// to the residual stream. Empty: there is none.
struct LayerNormNames {
  std::string_view attention = "input_layernorm", attention_out = "";
  std::string_view mlp = "post_attention_layernorm", mlp_out = "";
};

// Where layers of one model differ.
struct LayerForm {
  int64_t window = 0;         // a token attends to itself and so many - 1 before it; 0: to all
  bool has_rotary = true;     // false: no rotary embedding (NoPE)
  bool sliding_rope = false;  // rotated by ModelConfig::sliding_rope

  friend bool operator==(const LayerForm&, const LayerForm&) = default;
};

struct ModelConfig {
  std::string model_type;  // one of model_family.h: "llama", "qwen2", ...
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;  // E
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;  // L
  int64_t num_heads = 0;   // H
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // D
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  RopeSettings rope;
  std::optional<RopeSettings> sliding_rope;  // of layers with a window (Gemma 3)
  bool interleaved_rotary = false;  // pairs are (2i, 2i + 1) instead of (i, i + rotated / 2)
  bool tie_word_embeddings = false;
  bool attention_qkv_bias = false;
  bool attention_o_bias = false;
  bool mlp_bias = false;
  bool fused_qkv = false;      // one tensor self_attn.qkv_proj: rows of q, then k, then v
  bool fused_gate_up = false;  // one tensor mlp.gate_up_proj: rows of gate, then up
  QkNorm qk_norm = QkNorm::kNone;
  LayerNormNames norms;
  float norm_offset = 0;  // added to every norm's weight (Gemma: 1)
  Activation activation = Activation::kSilu;
  float embedding_scale = 1;           // embeddings are multiplied by it (Gemma: sqrt E)
  int64_t query_pre_attn_scalar = 0;   // scores are divided by its root; 0: head_dim
  float attention_softcap = 0;         // scores s become c tanh(s / c); 0: they stay
  float logit_softcap = 0;             // likewise logits
  std::vector<LayerForm> layer_forms;  // [L], or empty: all are LayerForm{}
  std::vector<int32_t> eos_token_ids;  // config.json and generation_config.json, merged
  int32_t bos_token_id = -1;           // -1: none
  int32_t pad_token_id = -1;
  DType checkpoint_dtype = DType::kF32;

  LayerForm layer(int64_t index) const {
    return layer_forms.empty() ? LayerForm{} : layer_forms[static_cast<size_t>(index)];
  }
  // Scores are products of queries and keys times this.
  float attention_scale() const;
  // Elements of a head that are rotated, in all layers that rotate any.
  int64_t rotated_elements() const { return RotatedElements(rope, head_dim); }
};

// A decoder as Llama's, Qwen2's and Qwen3's: the only ones that `feature` (a sentence's subject, such
// as "numerics exact on a GPU") takes.
//   UNIMPLEMENTED  the model has a window, caps, scaled embeddings, norms in other places, fused
//                  tensors, another activation or another rotary embedding (the first is named)
absl::Status CheckPlainDecoder(const ModelConfig& config, std::string_view feature);

// The model_types that ParseModelConfig takes, with their architectures, as messages list them:
// "llama (LlamaForCausalLM), ...".
std::string SupportedFamilies();

// Parses the text of config.json. Error messages start with `origin`.
//   INVALID_ARGUMENT  bad JSON; a required field is missing, of the wrong type or out of range
//                     (named); sizes that do not divide
//   UNIMPLEMENTED     an unsupported architecture, activation, rope type, sliding window or
//                     quantisation (named, with what is supported)
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, std::string_view origin);

// Reads DIR/config.json and, if present, the end tokens of generation_config.json.
//   NOT_FOUND  no config.json; the message says what a model directory must hold
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& directory);

// Returns the config.json that parses to `config`, in transformers-4 spelling, which both versions
// read.
std::string ModelConfigToJson(const ModelConfig& config, DType dtype);

// Specs of all tensors of the model under their Hugging Face names, all of `dtype`, in a fixed
// order: embedding, layers 0..L-1, final norm, and lm_head unless tied.
std::vector<TensorSpec> ModelTensors(const ModelConfig& config, DType dtype);

// Checks `tensors` against ModelTensors and returns them in that order. Tensors may come in any
// order and any float dtype. A tied lm_head.weight and rotary inv_freq buffers are accepted and
// dropped.
//   INVALID_ARGUMENT  tensors are missing, unknown or of another shape; names the first few
absl::StatusOr<std::vector<HostTensor>> MatchModelTensors(const ModelConfig& config,
                                                          std::vector<HostTensor> tensors);

// The rotary embeddings of a model: that of `rope`, and then that of `sliding_rope` where it has
// one.
std::vector<RotaryEmbedding> RotaryEmbeddings(const ModelConfig& config);

}  // namespace tandem
