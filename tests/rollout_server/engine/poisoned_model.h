// A tiny model in which two ids are poison, for tests of what one group can do to the others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/model/safetensors.h"
#include "tests/support/tiny_model.h"

namespace tandem::rollout {

inline constexpr int32_t kVocabulary = 300;
// Their embeddings are NaN and infinite: from such a token on, a sequence has no finite number.
inline constexpr int32_t kNan = 5, kInfinite = 6;

inline std::vector<HostTensor> PoisonedTensors(const ModelConfig& config, uint64_t seed) {
  std::vector<HostTensor> tensors = tandem::testing::TinyModelTensors(config, seed);
  for (HostTensor& tensor : tensors) {
    if (tensor.spec.name != "model.embed_tokens.weight") continue;
    const auto* const floats = reinterpret_cast<const float*>(tensor.bytes.data());
    auto values = std::make_shared<std::vector<float>>(floats, floats + tensor.bytes.size() / 4);
    const auto poison = [&](int32_t id, float value) {
      std::fill_n(values->begin() + id * config.hidden_size, config.hidden_size, value);
    };
    poison(kNan, std::numeric_limits<float>::quiet_NaN());
    poison(kInfinite, std::numeric_limits<float>::infinity());
    tensor.bytes = std::as_bytes(std::span(*values));
    tensor.owner = std::move(values);
  }
  return tensors;
}

inline absl::Status WritePoisonedModel(const std::string& directory, uint64_t seed) {
  ModelConfig config = tandem::testing::TinyModelConfig();
  config.vocab_size = kVocabulary;
  config.tie_word_embeddings = false;
  TANDEM_RETURN_IF_ERROR(
      tandem::testing::WriteTinyModel(directory, TANDEM_SOURCE_DIR, config, seed));
  return WriteSafetensors(directory + "/model.safetensors", PoisonedTensors(config, seed));
}

}  // namespace tandem::rollout
