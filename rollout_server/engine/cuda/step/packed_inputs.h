// PackedInputs: a step's arrays, concatenated so that one copy sends all of them to the device. Pure;
// thread-compatible.
#pragma once

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

// The offsets of the arrays of StepInputs.
struct PackedStep {
  size_t ids = 0, positions = 0, sequences = 0, contexts = 0, slots = 0, block_tables = 0;
  struct Range {
    size_t query_ends = 0, key_ends = 0, slots = 0;
  };
  std::vector<Range> ranges;
};
inline PackedStep Pack(const StepInputs& step, PackedInputs& to) {
  PackedStep at = {to.Add(step.ids),
                   to.Add(step.positions),
                   to.Add(step.sequences),
                   to.Add(step.contexts),
                   to.Add(step.slots),
                   to.Add(step.block_tables),
                   {}};
  for (const RowRange& range : step.ranges) {
    at.ranges.push_back(range.flash ? PackedStep::Range{to.Add(range.query_ends),
                                                        to.Add(range.key_ends), to.Add(range.slots)}
                                    : PackedStep::Range{});
  }
  return at;
}

}  // namespace tandem::rollout::cuda
