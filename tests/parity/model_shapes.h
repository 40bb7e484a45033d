// Shapes of the tiny model with the differences between model families, for tests of both sides.
#pragma once

#include "common/model/model_config.h"

namespace tandem::testing {

inline void Qwen2Like(ModelConfig& config) {
  config.model_type = "qwen2";
  config.attention_qkv_bias = true;
  config.num_kv_heads = 1;
  config.tie_word_embeddings = false;
}

inline void Qwen3Like(ModelConfig& config) {
  config.model_type = "qwen3";
  config.qk_norm = QkNorm::kPerHead;
  config.head_dim = 24;
}

}  // namespace tandem::testing
