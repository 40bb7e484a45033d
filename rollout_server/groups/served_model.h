// ServedModel: what a server says about its model, which never changes while it runs. LoadEngine
// makes it with the engine; the services read it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tensor/machine_limits.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/engine.h"

namespace tandem::rollout {

struct ServedModel {
  std::string path;
  ModelConfig config;
  EngineOptions options;
  std::string instruction_set;  // of the kernels
  std::string weights;          // PlanText of their number formats
  std::string tokenizer_hash;
  std::vector<TensorSpec> tensors;  // what a push must hold, in the engine's order
  std::vector<TensorSpec> stored;   // or, of a quantised engine, these (StoredTensors); else empty
  DigestMap digests;                // of the weights as loaded
  DigestMap served_digests;         // Engine::served_digests of them
  MachineLimits limits;             // of this machine, measured when the model was loaded
};

struct LoadedEngine {
  std::unique_ptr<Engine> engine;
  ServedModel model;
};

// Loads a model directory and digests its weights as served. Errors: those of Engine::Create.
absl::StatusOr<LoadedEngine> LoadEngine(const std::string& directory, const EngineOptions& options);

// The weights in a model directory, in the order and dtype of `model.tensors`; their bytes are
// aligned for their dtype. Errors: those of ReadAdaptedTensors and MatchModelTensors.
absl::StatusOr<std::vector<HostTensor>> ReadWeightsAs(const ServedModel& model,
                                                      const std::string& directory);
// The same of the directory that the server loaded at its start.
absl::StatusOr<std::vector<HostTensor>> ReadServedWeights(const ServedModel& model);

}  // namespace tandem::rollout
