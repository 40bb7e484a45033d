// HostTensor: a named tensor as bytes in host memory, in Hugging Face layout. This is the form of
// weights between files, the wire and the engines. Free of LibTorch.
#ifndef TANDEM_COMMON_WEIGHTS_HOST_TENSOR_H_
#define TANDEM_COMMON_WEIGHTS_HOST_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

enum class DType { kF32, kBF16, kF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool };

int64_t DTypeBytes(DType dtype);

// The safetensors name: "F32", "BF16", ...
std::string_view DTypeName(DType dtype);
//   INVALID_ARGUMENT  not a dtype that this project reads
absl::StatusOr<DType> DTypeFromName(std::string_view name);

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  int64_t num_elements() const;
  int64_t num_bytes() const { return num_elements() * DTypeBytes(dtype); }
  std::string ToString() const;  // "model.norm.weight F32 [576]"

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// `owner` keeps `bytes` alive (a mapped file, a staging buffer, an at::Tensor).
struct HostTensor {
  TensorSpec spec;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

}  // namespace tandem

#endif  // TANDEM_COMMON_WEIGHTS_HOST_TENSOR_H_
