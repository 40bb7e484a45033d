// MemoryPlan: what a trainer rank and a rollout server hold in memory, as sums of the arrays that
// they allocate. `tandem plan` prints it. Pure; free of LibTorch.
//
// Each part is an array or a kind of arrays, with the place in the code that allocates it. On the
// CPU the sums are compared with the measured peaks of small runs (tests/cli/plan). On a GPU they
// are the same arrays and were not measured.
//
// N: parameters; E, I, H, D, V, L: hidden and intermediate size, heads, head size, vocabulary,
// layers; T: tokens of a packed row; R: those of them whose log-probs are wanted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/lora/lora_shape.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "rollout_server/engine/engine_options.h"

namespace tandem::plan {

struct MemoryPart {
  std::string name;   // "policy masters"
  std::string about;  // what it is made of: "4 N / ranks"
  int64_t bytes = 0;
};

struct ProcessMemory {
  std::string name;  // "trainer rank", "rollout server"
  std::vector<MemoryPart> parts;

  int64_t total() const;
};

// What a trainer rank trains, whatever the algorithm.
struct TrainerShape {
  ModelConfig policy;
  DType file_dtype = DType::kF32;  // of the model directory's tensors, which stay mapped
  bool over_vocabulary = true;     // log-probs are wanted; false: a reward model's scores are
  bool scores_first = true;        // rows are scored before their updates: RL and preferences
  bool has_reference = false;
  LoraOptions lora;  // adapters of the policy, whose weights then stay and are whole on every rank
  std::optional<ModelConfig> critic;  // of a critic with a backbone of its own
  int64_t ranks = 1;
  bool shard_parameters = false;
  ComputeDType dtype = ComputeDType::kFp32;
  Device device = Device::kCpu;
  bool fast_bf16 = true;  // the CPU has instructions for bf16 products (HasFastBf16)
  bool checkpoint_activations = false;
  int64_t row_tokens = 0;           // T
  int64_t row_targets = 0;          // R
  int64_t batch_tokens = 0;         // of all rows of a train step
  std::optional<DType> push_dtype;  // of the servers' weights; none: weights are not pushed
};
ProcessMemory TrainerMemory(const TrainerShape& shape);

struct ServerShape {
  ModelConfig config;
  DType file_dtype = DType::kF32;
  rollout::EngineOptions engine;
  bool takes_pushes = true;
  bool takes_adapters = false;  // pushes are adapters
  int64_t device_bytes = 0;     // of one GPU; with it and no kv_capacity_tokens, KV takes the rest
};
ProcessMemory ServerMemory(const ServerShape& shape);

}  // namespace tandem::plan
