// Writes model directories in the form of Hugging Face. Free of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem::cli {

//   ALREADY_EXISTS  `directory` holds a config.json
absl::Status CheckNoModelAt(const std::string& directory);

// Writes `tensors` (in ModelTensors order, any float dtype) as `dtype`, the tokenizer files of
// `tokenizer_from`, and config.json last. `dtype` is kF32, or kBF16 with the dithered
// (deterministic stochastic) rounding of a weight push.
//   ALREADY_EXISTS  `out` holds a config.json
absl::Status WriteModelDirectory(const ModelConfig& config, std::vector<HostTensor> tensors,
                                 const std::string& tokenizer_from, const std::string& out,
                                 DType dtype);

// The same with the text of config.json, for a model with other tensors than ModelTensors.
absl::Status WriteModelFiles(const std::string& config_json, std::vector<HostTensor> tensors,
                             const std::string& tokenizer_from, const std::string& out,
                             DType dtype);

// The shape of a fresh model unless told otherwise. A head_dim of 0 stands for hidden_size /
// num_heads, and vocab_size is the most tokens that the tokenizer may have.
inline ModelConfig FreshModelShape() {
  return {.model_type = "llama",
          .vocab_size = 512,
          .hidden_size = 128,
          .intermediate_size = 384,
          .num_layers = 4,
          .num_heads = 4,
          .num_kv_heads = 2,
          .max_position_embeddings = 512,
          .tie_word_embeddings = true,
          .eos_token_ids = {2},
          .bos_token_id = 1,
          .pad_token_id = 0};
}

// Writes a model with random weights. Trains its tokenizer on `text` and writes config.json,
// generation_config.json, model.safetensors (fp32), tokenizer.json, tokenizer_config.json,
// special_tokens_map.json and chat_template.jinja into `directory`, in the form in which
// `transformers` saves a model. Weights are normal with standard deviation 0.02 (output
// projections: divided by sqrt(2 * layers), as in GPT-2), norms are 1 and biases 0. The same `seed`
// gives the same file on every machine.
//   ALREADY_EXISTS    the directory holds a config.json
//   INVALID_ARGUMENT  a dimension does not divide, or as Tokenizer::TrainByteLevelBpe
absl::StatusOr<ModelConfig> WriteFreshModel(const std::string& directory, const ModelConfig& shape,
                                            std::string_view text, uint64_t seed);

// The number of parameters of a model with this shape.
int64_t NumParameters(const ModelConfig& config);

}  // namespace tandem::cli
