// ServedModel: the facts about the model a server serves that never change while it runs. Made by
// LoadModelEngine, read by the services.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/tensor/machine_limits.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"

namespace tandem::rollout {

struct ServedModel {
  std::string model_type;
  std::string path;
  std::string dtype;            // "fp32" or "bf16"
  std::string numerics;         // "fast", "invariant" or "exact"
  std::string instruction_set;  // of the kernels
  std::string in_flight;        // "keep", "recompute", "abort" or "drain"
  int64_t vocab_size = 0;
  int64_t max_context_tokens = 0;
  std::string tokenizer_hash;
  int32_t num_threads = 0;
  std::vector<int32_t> eos_token_ids;
  std::vector<TensorSpec> tensors;  // what a push must hold, in the engine's order
  DigestMap digests;                // of the weights as loaded
  std::vector<std::string>
      injected;          // active faults with their strengths (engine_faults.h); empty: healthy
  MachineLimits limits;  // of this machine, measured when the model was loaded
};

}  // namespace tandem::rollout
