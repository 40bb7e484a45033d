// StagedTensor: one tensor of a weight push while it arrives, as dense bytes or as a delta over the
// live version's. Used by WeightReceiver, which guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/weights/host_tensor.h"
#include "common/weights/tensor_delta.h"

namespace tandem::rollout {

// Bytes of one tensor in Hugging Face layout. Readers share the ownership: while there is a second
// owner, the bytes are not written.
using TensorMemory = std::byte[];

// Zeroed memory of a tensor's size. Writing the zeros makes the system commit it now and not as
// bytes arrive.
std::shared_ptr<TensorMemory> TakenMemory(const TensorSpec& spec);

// The form of a tensor on the wire.
struct WireForm {
  TensorEncoding encoding = TensorEncoding::kDense;
  int64_t num_bytes = 0;  // encoded
};

class StagedTensor {
 public:
  // `spec` must outlive this. `memory` (may be null) is overwritten.
  static StagedTensor Dense(const TensorSpec* spec, std::shared_ptr<TensorMemory> memory);

  // `live` has the live version's bytes, and Undo returns them. A dense tensor gets memory of its
  // own.
  static StagedTensor OverLive(const TensorSpec* spec, const WireForm& form,
                               std::shared_ptr<TensorMemory> live);

  // Stores bytes of the wire form. Chunks after the last missing byte are ignored.
  //   OUT_OF_RANGE  the chunk ends past the wire form
  absl::Status Store(int64_t offset, std::span<const std::byte> data);

  // Makes the tensor from the bytes that arrived.
  //   DATA_LOSS  bytes are missing, or the delta is damaged
  absl::Status Finish();

  const TensorSpec& spec() const { return *spec_; }
  int64_t wire_bytes() const { return form_.num_bytes; }
  bool is_dense() const { return form_.encoding == TensorEncoding::kDense; }
  bool complete() const { return arrived_bytes_ == form_.num_bytes; }

  // The tensor: a dense one once it is complete, a delta after Finish.
  std::span<const std::byte> bytes() const;
  const std::shared_ptr<TensorMemory>& memory() const { return memory_; }

  // Restores and returns the live bytes (null for one made by Dense).
  std::shared_ptr<TensorMemory> Undo() &&;

 private:
  StagedTensor(const TensorSpec* spec, const WireForm& form) : spec_(spec), form_(form) {}

  const TensorSpec* spec_;
  WireForm form_;
  std::shared_ptr<TensorMemory> memory_;  // the tensor's; for a delta the live one until Finish
  std::shared_ptr<TensorMemory> live_;    // when memory_ is another
  std::vector<std::byte> delta_;
  bool added_ = false;                  // the delta was added to memory_
  bool over_live_ = false;              // Undo returns live bytes
  std::map<int64_t, int64_t> arrived_;  // begin -> end, disjoint and apart
  int64_t arrived_bytes_ = 0;
};

}  // namespace tandem::rollout
