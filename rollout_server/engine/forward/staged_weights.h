// The next version of the weights, before it is served: packed from tensors in host memory
// (StagedWeights), or arriving bucket by bucket in memory of the engine's device (ArrivingWeights).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/weights/digest.h"

namespace tandem::rollout {

// Weights converted and packed for the kernels, not live yet.
class StagedWeights {
 public:
  virtual ~StagedWeights() = default;

  // XXH3-128 of what is multiplied, by matrix, where that is not what was sent but made from it
  // here (quantised weights); else empty.
  DigestMap served_digests;
};

// Memory for the next version on the engine's device, which a weight push fills without a copy in
// host memory: a bucket is received into one of two buffers, and its slices are copied from there
// to where decode steps will read them. Nothing of it is live; destroyed early, it leaves the live
// version as it is. Thread-safe. INTERNAL from any method: the device failed.
class ArrivingWeights {
 public:
  virtual ~ArrivingWeights() = default;

  static constexpr size_t kBuffers = 2;

  // Receive buffer `index` (below kBuffers) of `num_bytes` of the device's memory. It is valid
  // until this object ends or the same buffer is requested again.
  //   RESOURCE_EXHAUSTED   no memory
  //   FAILED_PRECONDITION  after Seal
  virtual absl::StatusOr<std::span<std::byte>> Buffer(size_t index, int64_t num_bytes) = 0;

  // Copies bytes of a buffer to byte `offset` of tensor `index` (in the engine's order, Hugging
  // Face layout and dtype). Returns when the copy is done.
  //   OUT_OF_RANGE         no such tensor, or they end past it
  //   INVALID_ARGUMENT     they begin or end within an element
  //   FAILED_PRECONDITION  after Seal
  virtual absl::Status Write(size_t index, int64_t offset, std::span<const std::byte> bytes) = 0;

  // Ends writing. Returns WordSumsDigest (common/weights/digest.h) of each tensor, computed on the
  // device from the bytes that would be served. Elements that were not written have old contents.
  virtual absl::StatusOr<std::vector<std::string>> Seal() = 0;

  // Once, after Seal.
  virtual std::unique_ptr<StagedWeights> Take() = 0;
};

}  // namespace tandem::rollout
