// PackedInputs: a step's arrays, concatenated so that one copy sends all of them to the device.
// Pure; thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "rollout_server/engine/cuda/step/step_inputs.h"

namespace tandem::rollout::cuda {

class PackedInputs {
 public:
  // Appends `values`, which must live until Write. Returns their offset in bytes, a multiple of 16.
  template <typename T>
  size_t Add(const std::vector<T>& values) {
    const size_t at = bytes_;
    arrays_.push_back({at, values.data(), values.size() * sizeof(T)});
    bytes_ += (arrays_.back().bytes + 15) / 16 * 16;
    return at;
  }

  // The offset of `values`, which were added.
  template <typename T>
  size_t At(const std::vector<T>& values) const {
    return std::ranges::find(arrays_, values.data(), &Array::from)->at;
  }

  size_t bytes() const { return bytes_; }

  void Write(std::byte* to) const {
    for (const Array& array : arrays_) {
      if (array.bytes > 0) std::memcpy(to + array.at, array.from, array.bytes);
    }
  }

 private:
  struct Array {
    size_t at = 0;
    const void* from = nullptr;
    size_t bytes = 0;
  };

  std::vector<Array> arrays_;
  size_t bytes_ = 0;
};

inline void Pack(const StepInputs& step, PackedInputs& to) {
  for (const auto* array :
       {&step.ids, &step.positions, &step.sequences, &step.contexts, &step.block_tables}) {
    to.Add(*array);
  }
  to.Add(step.slots);
  for (const RowRange& range : step.ranges) {
    if (!range.flash) continue;
    to.Add(range.query_ends);
    to.Add(range.key_ends);
    to.Add(range.slots);
  }
}

}  // namespace tandem::rollout::cuda
