// KvCapacityTokens: how large an engine's KV cache is to be, before anything is allocated. Apart
// from the engine since the answer on a GPU is a plan of the device's whole memory
// (cuda/memory_plan.h).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "rollout_server/engine/engine.h"

namespace tandem::rollout {

// options.kv_capacity_tokens, or where that is 0: on a CUDA device what its free memory leaves,
// else 32 768. On a device the plan is logged, and is made whether or not a size is asked for.
//   INVALID_ARGUMENT     fewer than a block's tokens
//   UNIMPLEMENTED        injected faults on a CUDA device
//   FAILED_PRECONDITION, RESOURCE_EXHAUSTED  those of PlanCudaMemory (cuda/cuda_runner.h)
absl::StatusOr<int64_t> KvCapacityTokens(const ModelConfig& config, const EngineOptions& options);

}  // namespace tandem::rollout
