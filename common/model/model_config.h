// ModelConfig: the config.json of a Hugging Face directory, reduced to what a decoder of the Qwen2,
// Qwen3 or Llama family needs. It reads the spelling of transformers 4 (rope_theta, rope_scaling,
// torch_dtype) and that of transformers 5 (rope_parameters, dtype). Unsupported features are errors
// that name the feature.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// Llama 3 frequency scaling, the "llama3" rope type of transformers.
struct Llama3RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 1;
  int64_t original_max_position_embeddings = 0;
};

struct ModelConfig {
  std::string model_type;  // "llama", "qwen2", "qwen3"
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;  // E
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;  // L
  int64_t num_heads = 0;   // H
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;  // D
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  bool has_llama3_scaling = false;
  Llama3RopeScaling llama3_scaling;
  bool tie_word_embeddings = false;
  bool attention_qkv_bias = false;  // Qwen2: always; Llama and Qwen3: attention_bias
  bool attention_o_bias = false;    // Llama and Qwen3: attention_bias; Qwen2: never
  bool mlp_bias = false;
  bool qk_norm = false;                // Qwen3
  std::vector<int32_t> eos_token_ids;  // config.json and generation_config.json, merged
  int32_t bos_token_id = -1;           // -1: none
  int32_t pad_token_id = -1;
  DType checkpoint_dtype = DType::kF32;
};

// Parses the text of config.json. Error messages start with `origin`.
//   INVALID_ARGUMENT  bad JSON; a required field is missing, of the wrong type or out of range
//                     (named); sizes that do not divide
//   UNIMPLEMENTED     an unsupported architecture, activation, rope type, sliding window,
//                     quantisation or partial rotary embedding (named, with what is supported)
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

// Inverse frequencies of the rotary embedding, [head_dim / 2], with llama3 scaling applied,
// computed in float32 as transformers does. Position p rotates pair i by the angle p * inv_freq[i].
std::vector<float> RotaryInverseFrequencies(const ModelConfig& config);

}  // namespace tandem
