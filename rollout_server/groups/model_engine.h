// LoadModelEngine: the real Engine as EngineThread's StepEngine, with the facts of what it serves.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rollout_server/groups/served_model.h"
#include "rollout_server/groups/step_engine.h"

namespace tandem::rollout {

struct LoadedEngine {
  std::unique_ptr<StepEngine> engine;
  ServedModel model;
};

// Loads a model directory and digests its weights as served. Errors: those of Engine::Create.
absl::StatusOr<LoadedEngine> LoadModelEngine(const std::string& directory,
                                             const EngineOptions& options);

}  // namespace tandem::rollout
