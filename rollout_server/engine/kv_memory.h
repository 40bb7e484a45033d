// CheckKvMemory: does the KV cache of the CPU fit beside the weights? Asked before both are
// allocated, so that a server that is too large is an error at its start and not the out-of-memory
// killer in the middle of a run. Pure.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_KV_MEMORY_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_KV_MEMORY_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

namespace tandem::rollout {

struct KvMemory {
  int64_t capacity_tokens = 0;
  int64_t cache_bytes = 0;   // of that many tokens
  int64_t weight_bytes = 0;  // still to be laid out for the kernels
};

// `available`: AvailableMemoryBytes; nothing passes.
//   RESOURCE_EXHAUSTED  with the sizes, and the capacity that would fit
absl::Status CheckKvMemory(const KvMemory& wanted, std::optional<int64_t> available);

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_KV_MEMORY_H_
