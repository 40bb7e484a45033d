#include "common/tensor/host_tensor_conversion.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/tensor/torch_status.h"

namespace tandem {

namespace {

constexpr std::pair<DType, at::ScalarType> kTypes[] = {
    {DType::kF32, at::kFloat},  {DType::kBF16, at::kBFloat16}, {DType::kF16, at::kHalf},
    {DType::kF64, at::kDouble}, {DType::kI64, at::kLong},      {DType::kI32, at::kInt},
    {DType::kI16, at::kShort},  {DType::kI8, at::kChar},       {DType::kU8, at::kByte},
    {DType::kBool, at::kBool},
};

}  // namespace

absl::StatusOr<at::ScalarType> ToScalarType(DType dtype) {
  for (const auto& [host, torch] : kTypes) {
    if (host == dtype) return torch;
  }
  return InvalidArgument("unknown dtype");
}

absl::StatusOr<DType> FromScalarType(at::ScalarType type) {
  for (const auto& [host, torch] : kTypes) {
    if (torch == type) return host;
  }
  return InvalidArgument("no host dtype for ", at::toString(type));
}

absl::StatusOr<at::Tensor> ViewAsTensor(const HostTensor& tensor) {
  TANDEM_ASSIGN_OR_RETURN(const at::ScalarType type, ToScalarType(tensor.spec.dtype));
  if (static_cast<int64_t>(tensor.bytes.size()) != tensor.spec.num_bytes()) {
    return InvalidArgument(tensor.spec.ToString(), " has ", tensor.bytes.size(), " bytes, want ",
                           tensor.spec.num_bytes());
  }
  return CatchTorch("tensor view", [&] {
    const auto address = reinterpret_cast<uintptr_t>(tensor.bytes.data());
    if (address % DTypeBytes(tensor.spec.dtype) != 0 || tensor.bytes.empty()) {
      at::Tensor copy = at::empty(tensor.spec.shape, type);
      std::memcpy(copy.data_ptr(), tensor.bytes.data(), tensor.bytes.size());
      return copy;
    }
    // from_blob takes a mutable pointer; the contract forbids writing through it.
    void* data = const_cast<std::byte*>(tensor.bytes.data());
    return at::from_blob(
        data, tensor.spec.shape, [owner = tensor.owner](void*) {}, at::TensorOptions(type));
  });
}

absl::StatusOr<HostTensor> ToHostTensor(const std::string& name, const at::Tensor& tensor) {
  TANDEM_ASSIGN_OR_RETURN(const DType dtype, FromScalarType(tensor.scalar_type()));
  return CatchTorch("host tensor", [&] {
    auto kept = std::make_shared<at::Tensor>(tensor.detach().cpu().contiguous());
    HostTensor out;
    out.spec = {name, dtype, kept->sizes().vec()};
    out.bytes = {static_cast<const std::byte*>(kept->const_data_ptr()),
                 static_cast<size_t>(kept->nbytes())};
    out.owner = kept;
    return out;
  });
}

}  // namespace tandem
