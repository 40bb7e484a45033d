// ModelFamily: what all models of one architecture have in common and config.json does not say:
// names of tensors, places of norms, and the values of absent fields (those of transformers'
// configuration classes). Used by model_config.cc alone; the forwards read ModelConfig.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "common/model/model_config.h"

namespace tandem {

// Which layers attend to a sliding window.
enum class WindowRule {
  kNone,        // "sliding_window" is refused
  kEveryLayer,  // all, where "sliding_window" is set (Mistral, Phi-3)
  kFlag,        // from layer "max_window_layers" on, where "use_sliding_window" is set (Qwen)
  kNoRope,      // those without rotary embedding, where "use_sliding_window" is set (SmolLM3)
  kPattern,     // all but every n-th (Gemma)
};

// Biases of the query, key and value projections.
enum class BiasRule {
  kNever,
  kAlways,
  kField,  // where "attention_bias" is set
};

struct ModelFamily {
  std::string_view model_type;
  std::string_view architecture;
  // Names of a layer's norms; empty: none.
  LayerNormNames norms = {};
  QkNorm qk_norm = QkNorm::kNone;
  BiasRule attention_bias = BiasRule::kField;
  bool biased = false;        // kField, where the field is absent
  bool o_bias = false;        // kField: it counts for the output projection, too
  bool has_mlp_bias = false;  // "mlp_bias" is read
  bool fused_qkv = false, fused_gate_up = false;
  WindowRule window = WindowRule::kNone;
  int64_t default_window = 0;
  int64_t window_pattern = 0;  // kPattern: every layer of this number, from 1 on, is full
  std::string_view activation_field = "hidden_act";
  Activation activation = Activation::kSilu;
  // Norm weights of w + 1, scaled embeddings, query_pre_attn_scalar, and soft caps, which have these
  // values where their fields are absent; 0: none.
  bool is_gemma = false;
  double attention_softcap = 0, logit_softcap = 0;
  bool has_sliding_rope = false;  // layers with a window have a rotary embedding of their own
  bool interleaved_rotary = false;
  double rope_theta = 10000;
  bool partial_rotary = false;  // "partial_rotary_factor" may be below 1
  double partial_rotary_factor = 1;
  double rms_norm_eps = 1e-6;
  bool tied = false;
  int64_t head_dim = 0;      // 0: hidden_size / num_attention_heads
  int64_t num_kv_heads = 0;  // 0: num_attention_heads
  int32_t bos = -1;
  std::array<int32_t, 3> eos = {-1, -1, -1};
};

inline constexpr LayerNormNames kSandwichNorms = {"input_layernorm", "post_attention_layernorm",
                                                  "pre_feedforward_layernorm",
                                                  "post_feedforward_layernorm"};

inline constexpr ModelFamily kLlama = {.model_type = "llama",
                                       .architecture = "LlamaForCausalLM",
                                       .o_bias = true,
                                       .has_mlp_bias = true,
                                       .bos = 1,
                                       .eos = {2, -1, -1}};

inline constexpr ModelFamily kQwen2 = {.model_type = "qwen2",
                                       .architecture = "Qwen2ForCausalLM",
                                       .attention_bias = BiasRule::kAlways,
                                       .window = WindowRule::kFlag,
                                       .default_window = 4096};

inline constexpr ModelFamily kQwen3 = {.model_type = "qwen3",
                                       .architecture = "Qwen3ForCausalLM",
                                       .qk_norm = QkNorm::kPerHead,
                                       .o_bias = true,
                                       .window = WindowRule::kFlag,
                                       .default_window = 4096,
                                       .head_dim = 128};

inline constexpr ModelFamily kMistral = {.model_type = "mistral",
                                         .architecture = "MistralForCausalLM",
                                         .attention_bias = BiasRule::kNever,
                                         .window = WindowRule::kEveryLayer,
                                         .default_window = 4096,
                                         .num_kv_heads = 8,
                                         .bos = 1,
                                         .eos = {2, -1, -1}};

inline constexpr ModelFamily kGemma2 = {.model_type = "gemma2",
                                        .architecture = "Gemma2ForCausalLM",
                                        .norms = kSandwichNorms,
                                        .o_bias = true,
                                        .window = WindowRule::kPattern,
                                        .default_window = 4096,
                                        .window_pattern = 2,
                                        .activation_field = "hidden_activation",
                                        .activation = Activation::kGeluTanh,
                                        .is_gemma = true,
                                        .attention_softcap = 50,
                                        .logit_softcap = 30,
                                        .tied = true,
                                        .head_dim = 256,
                                        .num_kv_heads = 4,
                                        .bos = 2,
                                        .eos = {1, -1, -1}};

inline constexpr ModelFamily kGemma3 = {.model_type = "gemma3_text",
                                        .architecture = "Gemma3ForCausalLM",
                                        .norms = kSandwichNorms,
                                        .qk_norm = QkNorm::kPerHead,
                                        .o_bias = true,
                                        .window = WindowRule::kPattern,
                                        .default_window = 4096,
                                        .window_pattern = 6,
                                        .activation_field = "hidden_activation",
                                        .activation = Activation::kGeluTanh,
                                        .is_gemma = true,
                                        .has_sliding_rope = true,
                                        .rope_theta = 1e6,
                                        .tied = true,
                                        .head_dim = 256,
                                        .num_kv_heads = 4,
                                        .bos = 2,
                                        .eos = {1, -1, -1}};

inline constexpr ModelFamily kPhi3 = {.model_type = "phi3",
                                      .architecture = "Phi3ForCausalLM",
                                      .attention_bias = BiasRule::kNever,
                                      .fused_qkv = true,
                                      .fused_gate_up = true,
                                      .window = WindowRule::kEveryLayer,
                                      .partial_rotary = true,
                                      .rms_norm_eps = 1e-5,
                                      .bos = 1,
                                      .eos = {32000, -1, -1}};

inline constexpr ModelFamily kOlmo2 = {
    .model_type = "olmo2",
    .architecture = "Olmo2ForCausalLM",
    .norms = {"", "post_attention_layernorm", "", "post_feedforward_layernorm"},
    .qk_norm = QkNorm::kPerProjection,
    .o_bias = true,
    .rms_norm_eps = 1e-5,
    .eos = {50279, -1, -1}};

inline constexpr ModelFamily kSmolLm3 = {.model_type = "smollm3",
                                         .architecture = "SmolLM3ForCausalLM",
                                         .o_bias = true,
                                         .has_mlp_bias = true,
                                         .window = WindowRule::kNoRope,
                                         .rope_theta = 2e6,
                                         .tied = true,
                                         .num_kv_heads = 4,
                                         .bos = 128000,
                                         .eos = {128001, -1, -1}};

inline constexpr ModelFamily kGlm4 = {.model_type = "glm4",
                                      .architecture = "Glm4ForCausalLM",
                                      .norms = {"input_layernorm", "post_self_attn_layernorm",
                                                "post_attention_layernorm", "post_mlp_layernorm"},
                                      .biased = true,
                                      .fused_gate_up = true,
                                      .interleaved_rotary = true,
                                      .partial_rotary = true,
                                      .partial_rotary_factor = 0.5,
                                      .rms_norm_eps = 1.5625e-7,
                                      .head_dim = 128,
                                      .num_kv_heads = 2,
                                      .eos = {151329, 151336, 151338}};

// In the order in which messages name them.
inline constexpr std::array kModelFamilies = {kLlama,  kQwen2, kQwen3, kMistral, kGemma2,
                                              kGemma3, kPhi3,  kOlmo2, kSmolLm3, kGlm4};

// Null for a model_type that is none of them.
inline const ModelFamily* FindModelFamily(std::string_view model_type) {
  const auto* const found = std::ranges::find(kModelFamilies, model_type, &ModelFamily::model_type);
  return found == kModelFamilies.end() ? nullptr : found;
}

}  // namespace tandem
