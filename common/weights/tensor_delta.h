// TensorDelta: what changed in a tensor between two weight versions, in few bytes. A push whose
// receiver holds the version before sends these instead of tensors (arrow 9).
//
// A delta holds, for every element whose bits changed, the difference of the bit patterns taken as
// unsigned integers, modulo 2^16 or 2^32. So it can be added to the base in place, and taken away
// again when the push fails.
//
//   kMask  one bit per element, lowest first, set where it changed; then the differences, little
//          endian, in order
//   kGaps  for every changed element: how many before it did not change (since the last one that
//          did), then the difference as signed number in zigzag form; both as LEB128
//
// Under the dithered cast 2-5 % of bf16 elements change in a push, most by one unit in the last
// place: two bytes each in kGaps (docs/weight_push.md has the sizes).
// Pure functions; no state.
#ifndef TANDEM_COMMON_WEIGHTS_TENSOR_DELTA_H_
#define TANDEM_COMMON_WEIGHTS_TENSOR_DELTA_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// How the bytes of a tensor travel; kDense: as they are.
enum class TensorEncoding { kDense, kMask, kGaps };
std::string_view TensorEncodingName(TensorEncoding encoding);  // "dense", "mask", "gaps"

struct TensorDelta {
  TensorEncoding encoding = TensorEncoding::kDense;
  std::vector<std::byte> bytes;  // none when dense
  int64_t num_changed = 0;       // elements; not counted to the end when dense
};

// From `base` to `tensor`, in the encoding of fewest bytes; kDense where no delta is smaller, for
// dtypes of neither two nor four bytes, and where name, dtype or shape differ.
TensorDelta MakeDelta(const HostTensor& base, const HostTensor& tensor);

// Are these the bytes of a delta for such a tensor?
//   INVALID_ARGUMENT  kDense; a dtype of neither two nor four bytes
//   DATA_LOSS         an element past the end, a truncated or overlong number, bytes too many or
//                     too few
absl::Status CheckDelta(TensorEncoding encoding, const TensorSpec& spec,
                        std::span<const std::byte> delta);

// `tensor`, the base's bytes, becomes the next version's; and back again. `delta` has passed
// CheckDelta for the tensor's spec.
void AddDelta(TensorEncoding encoding, const TensorSpec& spec, std::span<const std::byte> delta,
              std::span<std::byte> tensor);
void SubtractDelta(TensorEncoding encoding, const TensorSpec& spec,
                   std::span<const std::byte> delta, std::span<std::byte> tensor);

}  // namespace tandem

#endif  // TANDEM_COMMON_WEIGHTS_TENSOR_DELTA_H_
