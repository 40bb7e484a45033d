// BucketStore: where the buckets of a push go at a server: through host memory into staging, or
// into the place of the next weights in the engine's own memory. WeightReceiver makes them,
// PushSeat fills them.
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

  virtual Device memory() const = 0;  // whose the rooms are

  // Memory for a bucket, in room `place`, 0 or 1: there until the room is asked for again.
  //   RESOURCE_EXHAUSTED  no memory;  INTERNAL  the device failed
  virtual absl::StatusOr<std::span<std::byte>> Room(size_t place, int64_t num_bytes) = 0;

  // Takes a slice's bytes out of a room; they may be overwritten when it returns. Errors: those of
  // WeightReceiver::Receive and ArrivingWeights::Write.
  virtual absl::Status Store(const BucketSlice& slice, std::span<const std::byte> bytes) = 0;
};

}  // namespace tandem::rollout
