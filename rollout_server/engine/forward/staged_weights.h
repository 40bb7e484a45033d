// Weights on their way to being served: packed from tensors in host memory (StagedWeights), or
// arriving bucket by bucket in memory of the engine's device (ArrivingWeights).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::rollout {

// Weights converted and packed for the kernels, not live yet.
class StagedWeights {
 public:
  virtual ~StagedWeights() = default;
};

// The place of the next version in the engine's own memory, which a push writes without a copy in
// host memory: a bucket is received into a room, and its slices are copied from there to where
// decode steps will read them. Nothing of it is live, and given up it leaves the live version as it
// is. Thread-safe. INTERNAL from any method: the device failed.
class ArrivingWeights {
 public:
  virtual ~ArrivingWeights() = default;

  static constexpr size_t kRooms = 2;

  // `num_bytes` of the engine's memory, in room `place` (below kRooms): there until this object
  // ends or the room is asked for again, with another size.
  //   RESOURCE_EXHAUSTED   no memory
  //   FAILED_PRECONDITION  after Seal
  virtual absl::StatusOr<std::span<std::byte>> Room(size_t place, int64_t num_bytes) = 0;

  // Copies bytes out of a room to byte `offset` of tensor `index`, as the engine counts them, in
  // Hugging Face layout and the engine's dtype; returns when they are there.
  //   OUT_OF_RANGE         no such tensor, or they end past it
  //   INVALID_ARGUMENT     they begin or end within an element
  //   FAILED_PRECONDITION  after Seal
  virtual absl::Status Write(size_t index, int64_t offset, std::span<const std::byte> bytes) = 0;

  // Lets nothing more in. Of each tensor WordSumsDigest (common/weights/digest.h) of the bytes
  // that would be served, made where they lie; elements that nobody wrote are what was there.
  virtual absl::StatusOr<std::vector<std::string>> Seal() = 0;

  // Once, after Seal.
  virtual std::unique_ptr<StagedWeights> Take() = 0;
};

}  // namespace tandem::rollout
