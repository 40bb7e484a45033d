// PlanMemory: how a CUDA engine will use its device's memory, before any of it is allocated: the
// weights and memory for the next version, the largest step, graphs, what CUDA itself takes, and a
// KV cache in the rest. Pure; free of LibTorch and CUDA.
//
// The sums are upper bounds: all arrays of a layer count as if they lived at once. The runner then
// allocates everything and runs the largest step once (TokenRunner::Rehearse), so that an
// underestimate is an error at the start and not in a later step.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "rollout_server/engine/engine_options.h"

namespace tandem::rollout::cuda {

inline constexpr int64_t kMeasuredBytes = int64_t{256} << 20;     // each of two buffers
inline constexpr int64_t kMeasurementBytes = int64_t{768} << 20;  // with the products' matrices
// Estimates, never measured: what CUDA takes besides arrays.
inline constexpr int64_t kDriverBytes = int64_t{768} << 20;
inline constexpr int64_t kGraphBytes = int64_t{4} << 20;  // for the launches of one graph
// For a weight push over NCCL: its buffers, and the receive buffers for buckets
// (trainer.push.group.bucket_bytes, 32 MiB unless set; two for each version of weights).
inline constexpr int64_t kPushBytes = int64_t{512} << 20;
inline constexpr int64_t kSpareShare = 64;  // 1/64 of the device is left unplanned
inline constexpr int64_t kMostGraphs = 128;
inline constexpr int64_t kMostKvTokens = int64_t{1} << 28;

// The device's memory, once the process has its context there.
struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

struct MemoryPlan {
  DeviceMemory device;
  int64_t weight_versions = 0;  // held at once: 2 when weights may be pushed
  int64_t weights_bytes = 0;    // of one version
  int64_t step_bytes = 0;       // arrays of the largest step, or of the measurement at the start
  int64_t graph_bytes = 0;      // 0 without graphs
  int64_t push_bytes = 0;       // 0 when weights are never pushed
  int64_t driver_bytes = 0;     // cuBLAS workspaces, kernels that are loaded at their first use
  int64_t spare_bytes = 0;      // for fragmentation
  int64_t kv_bytes = 0;
  int64_t num_blocks = 0;  // of the KV cache

  int64_t rest_bytes() const;  // of everything except the cache
  // For people: one line for each part, in MiB, the largest sum last.
  std::string Text() const;
};

// RESOURCE_EXHAUSTED  everything except the cache, or together with the requested cache, is more
//                     than the device has free; the message has the parts, and the largest
//                     kv_capacity_tokens that fits
absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, const EngineOptions& options,
                                      const DeviceMemory& device);

// Bytes of the arrays of a step of `tokens` tokens, with `logits_rows` rows of logits.
int64_t StepBytes(const ModelConfig& config, DType dtype, int64_t tokens, int64_t logits_rows);

// Bytes of one version of the weights, each array rounded up as the allocator does.
int64_t WeightsBytes(const ModelConfig& config, DType dtype);

}  // namespace tandem::rollout::cuda
