// BucketSource: where the buckets of a push come from at the trainer: copied together in host
// memory, or cast from the masters in memory of a device (cuda/device_cast.h). PushGroup sends what
// it makes. Free of LibTorch.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/statusor.h"
#include "common/model/numerics.h"
#include "common/weights/wire_buckets.h"

namespace tandem::trainer {

// Not thread-safe: the thread that sends uses it.
class BucketSource {
 public:
  virtual ~BucketSource() = default;

  virtual Device memory() const = 0;  // that the bytes lie in

  // The bytes of `bucket`, in buffer `place` (0 or 1), valid until that buffer is filled again. In
  // the memory of a device they are valid for work that is put on this thread's current stream
  // after the call.
  //   any error of reading the tensors
  //   INTERNAL  the device failed, or has no memory for a buffer
  virtual absl::StatusOr<std::span<std::byte>> Fill(size_t place, const Bucket& bucket) = 0;
};

}  // namespace tandem::trainer
