// PlanMemory: what a CUDA engine will hold of its device's memory, before any of it is allocated:
// the starting weights and the place of the next ones, the largest step, graphs, what CUDA itself
// takes, and a KV cache in what is left. Pure; free of LibTorch and CUDA.
//
// The sums are upper bounds: arrays of a step count as if all of a layer's lived at once. The
// runner then allocates all of it and runs the largest step once (TokenRunner::Rehearse), so that a
// sum that is too small ends the start and not a step of the tenth hour.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace tandem::rollout::cuda {

inline constexpr int64_t kMeasuredBytes = int64_t{256} << 20;     // each of two buffers
inline constexpr int64_t kMeasurementBytes = int64_t{768} << 20;  // with the products' matrices
// Estimates: of what CUDA takes besides arrays. Never measured.
inline constexpr int64_t kDriverBytes = int64_t{768} << 20;
inline constexpr int64_t kGraphBytes = int64_t{4} << 20;  // of one graph's launches
// Of a push over NCCL: its buffers, and buckets on their way (trainer.push.group.bucket_bytes, 32
// MiB unless set, two for each place of weights).
inline constexpr int64_t kPushBytes = int64_t{512} << 20;
inline constexpr int64_t kSpareShare = 64;  // one part of so many of the device
inline constexpr int64_t kMostGraphs = 128;
inline constexpr int64_t kMostKvTokens = int64_t{1} << 28;

struct MemoryNeeds {
  DType dtype = DType::kBF16;   // of weights, cache and the inputs of linear layers
  int64_t weight_versions = 2;  // held at once: 2 where a push may come
  bool graphs = true;
  int64_t max_batch_sequences = 64;
  int64_t max_step_tokens = 512;
  int64_t kv_capacity_tokens = 0;  // 0: what is left
};

// Of the device, once the process has its context there.
struct DeviceMemory {
  int64_t free_bytes = 0;
  int64_t total_bytes = 0;
};

struct MemoryPlan {
  DeviceMemory device;
  int64_t weight_versions = 0;
  int64_t weights_bytes = 0;  // of one version
  int64_t step_bytes = 0;     // arrays of the largest step, or of the measurement at the start
  int64_t graph_bytes = 0;    // 0 without graphs
  int64_t push_bytes = 0;     // 0 where no push may come
  int64_t driver_bytes = 0;   // cuBLAS workspaces, kernels that are loaded at their first use
  int64_t spare_bytes = 0;    // lost between the allocator's pieces
  int64_t kv_bytes = 0;
  int64_t num_blocks = 0;  // of the KV cache

  int64_t rest_bytes() const;  // of everything but the cache
  // One line for each part, in MiB, the largest sum last: for people.
  std::string Text() const;
};

// RESOURCE_EXHAUSTED  the parts but the cache, or with the cache that is asked for, are more than
//                     the device has free: the message has the parts, and the largest
//                     kv_capacity_tokens that fits
absl::StatusOr<MemoryPlan> PlanMemory(const ModelConfig& config, const MemoryNeeds& needs,
                                      const DeviceMemory& device);

// Arrays of a step of so many tokens, of which so many rows have logits.
int64_t StepBytes(const ModelConfig& config, DType dtype, int64_t tokens, int64_t logits_rows);

// One version of the weights, each array rounded up as the allocator does.
int64_t WeightsBytes(const ModelConfig& config, DType dtype);

}  // namespace tandem::rollout::cuda
