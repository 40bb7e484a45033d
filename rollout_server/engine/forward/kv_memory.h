// CheckKvMemory: does what a server will hold in the memory of the host fit: the KV cache of the
// CPU, the weights, and what a push takes beside them? Asked before any of it is allocated, so that
// a server that is too large is an error at its start and not the out-of-memory killer in the
// middle of a run. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace tandem::rollout {

struct KvMemory {
  int64_t capacity_tokens = 0;
  int64_t cache_bytes = 0;   // of that many tokens; 0: it is in a device's memory
  int64_t weight_bytes = 0;  // still to be laid out for the kernels
  // Where pushes come: the next version's weights, laid out beside those that serve, and the
  // tensors as they arrive.
  int64_t push_bytes = 0;
};

// `available`: AvailableMemoryBytes; nothing passes.
//   RESOURCE_EXHAUSTED  with the sizes, and the capacity that would fit
absl::Status CheckKvMemory(const KvMemory& wanted, std::optional<int64_t> available);

}  // namespace tandem::rollout
