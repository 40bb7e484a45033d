// A model directory made from nothing: random weights and a tokenizer trained on a text, as
// `transformers` would save it. `tandem init` uses it; free of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace tandem::cli {

struct FreshModelShape {
  std::string model_type = "llama";  // llama, qwen2, qwen3
  int64_t hidden = 128;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 0;  // 0: hidden / heads
  int64_t intermediate = 384;
  int64_t vocab = 512;
  int64_t context = 512;
  bool tie_word_embeddings = true;
};

// Trains the tokenizer on `text` and writes config.json, generation_config.json, model.safetensors
// (fp32), tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja
// into `directory`. Weights: normal with deviation 0.02 from `seed` (output projections divided by
// sqrt(2 * layers)), norms 1, biases 0; the same seed gives the same file everywhere.
//   ALREADY_EXISTS    the directory holds a config.json
//   INVALID_ARGUMENT  a shape that does not divide; Tokenizer::TrainByteLevelBpe's reasons
absl::StatusOr<ModelConfig> WriteFreshModel(const std::string& directory,
                                            const FreshModelShape& shape, std::string_view text,
                                            uint64_t seed);

// Numbers in a model of this shape.
int64_t NumParameters(const ModelConfig& config);

}  // namespace tandem::cli
