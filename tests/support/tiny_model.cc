#include "tests/support/tiny_model.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numbers>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/model/safetensors.h"

namespace tandem::testing {
namespace {

constexpr float kSpread = 0.3f;
// Logits spread by about kVocabularySpread * sqrt(hidden).
constexpr float kVocabularySpread = 0.8f;

// Standard normals by the Box-Muller transform over SplitMix64, the same on every machine and with
// every library.
class NormalSource {
 public:
  explicit NormalSource(uint64_t seed) : state_(seed) {}

  float Next() {
    const double radius = std::sqrt(-2 * std::log(Uniform()));
    return static_cast<float>(radius * std::cos(2 * std::numbers::pi * Uniform()));
  }

 private:
  double Uniform() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    return (static_cast<double>(z >> 12) + 0.5) * 0x1.0p-52;
  }

  uint64_t state_;
};

}  // namespace

ModelConfig TinyModelConfig() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 49152;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.max_position_embeddings = 256;
  config.rms_norm_eps = 1e-5;
  config.rope.theta = 10000;
  config.tie_word_embeddings = true;
  config.eos_token_ids = {2};
  config.bos_token_id = 1;
  config.pad_token_id = 2;
  config.checkpoint_dtype = DType::kF32;
  return config;
}

std::vector<HostTensor> TinyModelTensors(const ModelConfig& config, uint64_t seed) {
  NormalSource normal(seed);
  std::vector<HostTensor> tensors;
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
    const bool is_norm = spec.name.find("norm") != std::string::npos;
    const bool is_vocabulary = spec.shape[0] == config.vocab_size;
    auto values = std::make_shared<std::vector<float>>(spec.num_elements());
    for (float& value : *values) {
      const float noise = normal.Next();
      value = is_norm ? 1 + 0.1f * noise : (is_vocabulary ? kVocabularySpread : kSpread) * noise;
    }
    const auto bytes = std::as_bytes(std::span(*values));
    tensors.push_back({spec, bytes, std::move(values)});
  }
  return tensors;
}

absl::Status WriteTinyModel(const std::string& directory, const std::string& source_dir,
                            const ModelConfig& config, uint64_t seed) {
  namespace fs = std::filesystem;
  const fs::path tokenizer = fs::path(source_dir) / "tests/testdata/smollm2-tokenizer";
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                           "chat_template.jinja"}) {
    std::error_code error;
    fs::copy_file(tokenizer / name, fs::path(directory) / name, error);
    if (error) {
      return absl::InternalError(absl::StrCat("copy ", name, ": ", error.message()));
    }
  }
  std::ofstream out(fs::path(directory) / "config.json");
  out << ModelConfigToJson(config, DType::kF32);
  out.close();
  if (!out) return absl::InternalError(absl::StrCat("cannot write ", directory, "/config.json"));
  return WriteSafetensors(directory + "/model.safetensors", TinyModelTensors(config, seed));
}

}  // namespace tandem::testing
