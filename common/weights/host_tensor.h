// HostTensor: a named tensor as bytes in host memory, in Hugging Face layout. This is the form of
// weights between files, the wire and the engines. Free of LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

enum class DType { kF32, kBF16, kF16, kF64, kI64, kI32, kI16, kI8, kU8, kBool };

int64_t DTypeBytes(DType dtype);
bool IsFloat(DType dtype);

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

// The same tensor with elements at addresses that are multiples of their size: itself, or a copy. In a
// file, tensors may begin at odd addresses.
HostTensor Aligned(HostTensor tensor);

// TensorSource: a tensor that is loaded on demand, for sets too large to hold at once, such as the
// optimizer's state of many ranks on its way to or from a file. Free of LibTorch.
struct TensorSource {
  TensorSpec spec;
  // Returns a tensor of `spec`. Whoever makes the source documents who may call it, in which order,
  // and how long the bytes stay valid.
  std::function<absl::StatusOr<HostTensor>()> read;
};

// A source for a tensor that is in memory already.
inline TensorSource Present(HostTensor tensor) {
  TensorSpec spec = tensor.spec;
  return {std::move(spec), [tensor = std::move(tensor)] { return tensor; }};
}
inline std::vector<TensorSource> PresentAll(std::vector<HostTensor> tensors) {
  std::vector<TensorSource> sources;
  for (HostTensor& tensor : tensors) sources.push_back(Present(std::move(tensor)));
  return sources;
}

}  // namespace tandem
