#include "common/tensor/nearest_cast.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "common/base/status_macros.h"
#include "common/tensor/bf16_rounding.h"

namespace tandem {
namespace {

// The value of IEEE half-precision bits, which every float holds exactly.
float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1F, fraction = bits & 0x3FF;
  if (exponent == 0) {  // zero, or fraction * 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide_exponent = exponent == 0x1F ? 0xFF : exponent + (127 - 15);
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

template <typename T, typename Round>
HostTensor Cast(const HostTensor& tensor, DType dtype, const Round& round) {
  auto cast = std::make_shared<std::vector<T>>(tensor.spec.num_elements());
  for (size_t i = 0; i < cast->size(); ++i) {
    (*cast)[i] =
        round(ElementAsFloat(tensor.spec.dtype, tensor.bytes.data(), static_cast<int64_t>(i)));
  }
  HostTensor out{{tensor.spec.name, dtype, tensor.spec.shape}, {}, cast};
  out.bytes = std::as_bytes(std::span(*cast));
  return out;
}

}  // namespace

float ElementAsFloat(DType dtype, const std::byte* bytes, int64_t i) {
  const auto load = [&]<typename T>(T value) {
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return value;
  };
  switch (dtype) {
    case DType::kF32:
      return load(float{});
    case DType::kBF16:
      return Bf16ToFloat(load(uint16_t{}));
    case DType::kF16:
      return HalfToFloat(load(uint16_t{}));
    default:
      return static_cast<float>(load(double{}));
  }
}

absl::StatusOr<HostTensor> CastNearest(const HostTensor& tensor, DType dtype) {
  if (tensor.spec.dtype == dtype) return tensor;
  if (!IsFloat(tensor.spec.dtype)) {
    return InvalidArgument(tensor.spec.ToString(), ": want a float dtype (F32, BF16, F16 or F64)");
  }
  switch (dtype) {
    case DType::kF32:
      return Cast<float>(tensor, dtype, [](float x) { return x; });
    case DType::kBF16:
      return Cast<uint16_t>(tensor, dtype, NearestBf16);
    default:
      return InvalidArgument("cast to ", DTypeName(dtype), ", want F32 or BF16");
  }
}

}  // namespace tandem
