// ToyModel: a small decoder with random weights, or one worked out by hand, for tests of the
// trainer's numerics.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem::testing {

inline ModelConfig ToyConfig() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 32;
  config.hidden_size = 24;
  config.intermediate_size = 20;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 6;
  config.max_position_embeddings = 128;
  config.tie_word_embeddings = true;
  return config;
}

inline HostTensor ToyTensor(const TensorSpec& spec, std::vector<float> values) {
  auto owner = std::make_shared<std::vector<float>>(std::move(values));
  return {.spec = spec,
          .bytes = {reinterpret_cast<const std::byte*>(owner->data()), owner->size() * 4},
          .owner = owner};
}

// Norms around 1, the rest around 0 with standard deviation `spread`.
inline std::vector<HostTensor> ToyWeights(const ModelConfig& config, int seed = 1,
                                          float spread = 0.3f) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  std::vector<HostTensor> tensors;
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
    const bool is_norm = spec.name.find("norm") != std::string::npos;
    std::vector<float> values(static_cast<size_t>(spec.num_elements()));
    for (float& v : values) v = is_norm ? 1 + 0.1f * normal(random) : spread * normal(random);
    tensors.push_back(ToyTensor(spec, std::move(values)));
  }
  return tensors;
}

// A model that is nearly sure that token i + 1 follows token i (mod V): no layer adds anything, the
// embedding is one-hot, and row v of the head looks for token v - 1.
inline ModelConfig SuccessorConfig() {
  ModelConfig config = ToyConfig();
  config.vocab_size = 16;
  config.hidden_size = 16;
  config.num_heads = 2;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.num_layers = 1;
  config.tie_word_embeddings = false;
  return config;
}

inline std::vector<HostTensor> SuccessorWeights(const ModelConfig& config) {
  std::vector<HostTensor> tensors;
  const int64_t v = config.vocab_size;
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
    std::vector<float> values(static_cast<size_t>(spec.num_elements()), 0.0f);
    for (int64_t i = 0; i < v; ++i) {
      const auto row = static_cast<size_t>(i * v);
      if (spec.name == "model.embed_tokens.weight") values[row + static_cast<size_t>(i)] = 1;
      if (spec.name == "lm_head.weight") values[row + static_cast<size_t>((i + v - 1) % v)] = 5;
    }
    if (spec.name.find("norm") != std::string::npos) values.assign(values.size(), 1.0f);
    tensors.push_back(ToyTensor(spec, std::move(values)));
  }
  return tensors;
}

}  // namespace tandem::testing
