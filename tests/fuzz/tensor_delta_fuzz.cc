// Any bytes as the delta of a tensor: refused, or it changes nothing but the tensor's elements and
// can be taken back. The first byte says the encoding and the dtype, the second the number of
// elements.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/weights/tensor_delta.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto encoding =
      data[0] % 2 == 0 ? tandem::TensorEncoding::kGaps : tandem::TensorEncoding::kMask;
  const tandem::TensorSpec spec = {
      "w", data[0] % 4 < 2 ? tandem::DType::kBF16 : tandem::DType::kF32, {data[1]}};
  const std::span<const std::byte> delta = std::as_bytes(std::span(data, size)).subspan(2);
  if (!tandem::CheckDelta(encoding, spec, delta).ok()) return 0;
  std::vector<std::byte> tensor(static_cast<size_t>(spec.num_bytes()), std::byte{0x5a});
  const std::vector<std::byte> base = tensor;
  tandem::AddDelta(encoding, spec, delta, tensor);
  tandem::SubtractDelta(encoding, spec, delta, tensor);
  TANDEM_CHECK(tensor == base);
  return 0;
}
