// ScriptedModel: the facts of the model that a server with a ScriptedEngine serves.
#pragma once

#include <cstddef>
#include <vector>

#include "common/weights/digest.h"
#include "rollout_server/groups/served_model.h"

namespace tandem::rollout::testing {

// Two tensors, a: F32 [2], b: BF16 [3], all zero.
inline std::vector<TensorSpec> ScriptedTensors() {
  return {{"a", DType::kF32, {2}}, {"b", DType::kBF16, {3}}};
}

inline ServedModel ScriptedModel() {
  ServedModel model{.config = {.model_type = "scripted", .vocab_size = 1000}};
  model.config.max_position_embeddings = 1000;
  model.tensors = ScriptedTensors();
  const std::vector<std::byte> zeros(8);
  model.digests["a"] = Digest128({zeros.data(), 8});
  model.digests["b"] = Digest128({zeros.data(), 6});
  return model;
}

}  // namespace tandem::rollout::testing
