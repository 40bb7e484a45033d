// TensorDelta: the changes of a tensor between two weight versions, in few bytes. If the receiver
// of a push (weight sync) holds the version before, it is sent deltas instead of tensors (stage 9).
//
// For every element whose bits changed, a delta holds the difference of the bit patterns as
// unsigned integers, modulo 2^8, 2^16 or 2^32. It can therefore be added to the base in place, and
// subtracted again if the push fails.
//
//   kMask  one bit per element, lowest first, set where it changed; then the differences, little
//          endian, in order
//   kGaps  for every changed element, the number of unchanged elements since the last changed one,
//          then the difference as a signed number in zigzag form; both as LEB128
//
// Under the dithered cast, 2-5 % of the bf16 elements change in a push, most by one unit in the
// last place, which takes two bytes each in kGaps (docs/weight_push.md has the sizes).
// Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// How the bytes of a tensor are sent; kDense sends them as they are.
enum class TensorEncoding { kDense, kMask, kGaps };
std::string_view TensorEncodingName(TensorEncoding encoding);  // "dense", "mask", "gaps"

struct TensorDelta {
  TensorEncoding encoding = TensorEncoding::kDense;
  std::vector<std::byte> bytes;  // empty if dense
  int64_t num_changed = 0;       // changed elements; if dense, a lower bound
};

// The delta from `base` to `tensor`, in the smallest encoding. The result is kDense if no delta is
// smaller, if elements have eight bytes, or if name, dtype or shape differ.
TensorDelta MakeDelta(const HostTensor& base, const HostTensor& tensor);

// Checks that these bytes are a delta for such a tensor.
//   INVALID_ARGUMENT  kDense, or elements of eight bytes
//   DATA_LOSS         an element past the end, a truncated or overlong number, too many or too few
//                     bytes
absl::Status CheckDelta(TensorEncoding encoding, const TensorSpec& spec,
                        std::span<const std::byte> delta);

// Turns the base's bytes in `tensor` into the next version's, and back. `delta` must have passed
// CheckDelta for the tensor's spec.
void AddDelta(TensorEncoding encoding, const TensorSpec& spec, std::span<const std::byte> delta,
              std::span<std::byte> tensor);
void SubtractDelta(TensorEncoding encoding, const TensorSpec& spec,
                   std::span<const std::byte> delta, std::span<std::byte> tensor);

}  // namespace tandem
