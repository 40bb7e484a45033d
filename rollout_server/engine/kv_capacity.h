// How large an engine's KV cache is, and whether the host has memory for it, both decided before
// anything is allocated: a server that is too large is an error at its start and not the
// out-of-memory killer in the middle of a run.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "rollout_server/engine/engine_options.h"

namespace tandem::rollout {

// options.kv_capacity_tokens, or where that is 0: on a CUDA device what its free memory leaves,
// else 32 768. On a device, memory is planned (cuda/memory_plan.h) and the plan is logged in either
// case.
//   INVALID_ARGUMENT     fewer than a block's tokens
//   UNIMPLEMENTED        injected faults on a CUDA device
//   FAILED_PRECONDITION, RESOURCE_EXHAUSTED  those of PlanCudaMemory (cuda/cuda_runner.h)
absl::StatusOr<int64_t> KvCapacityTokens(const ModelConfig& config, const EngineOptions& options);

// What a server will hold in the memory of the host.
struct KvMemory {
  int64_t capacity_tokens = 0;
  int64_t cache_bytes = 0;   // of that many tokens; 0: it is in a device's memory
  int64_t weight_bytes = 0;  // still to be laid out for the kernels
  // A weight push: the next version's weights, laid out beside those that serve, and the tensors as
  // they arrive.
  int64_t push_bytes = 0;
};

// Does it fit? `available`: AvailableMemoryBytes; nothing passes. Pure.
//   RESOURCE_EXHAUSTED  with the sizes, and the capacity that would fit
absl::Status CheckKvMemory(const KvMemory& wanted, std::optional<int64_t> available);

// Bytes of a model's tensors. `copies` of them were made by the cast to the engine's dtype and are
// freed once the tensors are laid out.
struct TensorBytes {
  int64_t all = 0, copies = 0;
};

// CheckKvMemory for an engine of `options`, whose capacity is KvCapacityTokens. A weight push
// arrives in host memory on every device, and is laid out there on the CPU only.
absl::Status CheckHostMemory(const EngineOptions& options, const ModelConfig& config,
                             const TensorBytes& tensors);

}  // namespace tandem::rollout
