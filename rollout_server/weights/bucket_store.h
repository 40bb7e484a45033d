// BucketStore: where the buckets of a weight push go at a server: through host memory into staging,
// or to the next weights in the memory of the engine's device. WeightReceiver makes one for each
// push, and PushSeat fills it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/numerics.h"
#include "common/weights/wire_buckets.h"

namespace tandem::rollout {

// Not thread-safe: one thread uses it.
class BucketStore {
 public:
  virtual ~BucketStore() = default;

  virtual Device memory() const = 0;  // of the buffers

  // Receive buffer `index`, 0 or 1, for a bucket. It is valid until the same buffer is requested
  // again.
  //   RESOURCE_EXHAUSTED  no memory
  //   INTERNAL            the device failed
  virtual absl::StatusOr<std::span<std::byte>> Buffer(size_t index, int64_t num_bytes) = 0;

  // Stores the bytes of a slice, which lie in a buffer and may be overwritten once this returns.
  // Errors: those of WeightReceiver::Receive and ArrivingWeights::Write.
  virtual absl::Status Store(const BucketSlice& slice, std::span<const std::byte> bytes) = 0;
};

}  // namespace tandem::rollout
