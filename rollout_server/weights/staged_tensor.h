// StagedTensor: one tensor of a weight push while it arrives: dense bytes, or a delta over the live
// version's. Used by WeightReceiver, which guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/weights/host_tensor.h"
#include "common/weights/tensor_delta.h"

namespace tandem::rollout {

// Bytes of one tensor in Hugging Face layout. Shared with whoever reads them: a second owner keeps
// them from being written.
struct TensorMemory {
  std::unique_ptr<std::byte[]> bytes;
};

// Memory of a tensor's size, zeroed: all of it is taken now, and not as bytes arrive.
std::shared_ptr<TensorMemory> TakenMemory(const TensorSpec& spec);

// How a tensor of a push travels.
struct WireForm {
  TensorEncoding encoding = TensorEncoding::kDense;
  int64_t num_bytes = 0;  // encoded
};

class StagedTensor {
 public:
  // `spec` outlives this. `memory` (may be null) is written over.
  static StagedTensor Dense(const TensorSpec* spec, std::shared_ptr<TensorMemory> memory);

  // `live` holds the live version's bytes, and Undo gives them back. A dense tensor goes beside it.
  static StagedTensor OverLive(const TensorSpec* spec, const WireForm& form,
                               std::shared_ptr<TensorMemory> live);

  // Bytes that travel; what arrives after all of them have is not looked at.
  //   OUT_OF_RANGE  the chunk ends past them
  absl::Status Store(int64_t offset, std::span<const std::byte> data);

  // Once all have arrived: makes the tensor of them.
  //   DATA_LOSS  some are missing; a damaged delta
  absl::Status Finish();

  const TensorSpec& spec() const { return *spec_; }
  int64_t wire_bytes() const { return form_.num_bytes; }
  bool is_dense() const { return form_.encoding == TensorEncoding::kDense; }
  bool complete() const { return arrived_bytes_ == form_.num_bytes; }

  // Of the tensor: of a dense one once complete, of a delta after Finish.
  std::span<const std::byte> bytes() const;
  const std::shared_ptr<TensorMemory>& memory() const { return memory_; }

  // The live bytes again (null when Dense took their place).
  std::shared_ptr<TensorMemory> Undo() &&;

 private:
  StagedTensor(const TensorSpec* spec, const WireForm& form) : spec_(spec), form_(form) {}

  const TensorSpec* spec_;
  WireForm form_;
  std::shared_ptr<TensorMemory> memory_;  // the tensor's; a delta's is the live one until Finish
  std::shared_ptr<TensorMemory> live_;    // where memory_ is another
  std::vector<std::byte> delta_;
  bool added_ = false;                  // the delta, to memory_
  bool over_live_ = false;              // Undo gives live bytes back
  std::map<int64_t, int64_t> arrived_;  // begin -> end, disjoint and apart
  int64_t arrived_bytes_ = 0;
};

}  // namespace tandem::rollout
