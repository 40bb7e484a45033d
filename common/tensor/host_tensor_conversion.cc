#include "common/tensor/host_tensor_conversion.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/torch_status.h"

namespace tandem {

absl::StatusOr<at::ScalarType> ToScalarType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return at::kFloat;
    case DType::kBF16:
      return at::kBFloat16;
    case DType::kF16:
      return at::kHalf;
    case DType::kF64:
      return at::kDouble;
    case DType::kI64:
      return at::kLong;
    case DType::kI32:
      return at::kInt;
    case DType::kI16:
      return at::kShort;
    case DType::kI8:
      return at::kChar;
    case DType::kU8:
      return at::kByte;
    case DType::kBool:
      return at::kBool;
  }
  return absl::InvalidArgumentError("unknown dtype");
}

absl::StatusOr<DType> FromScalarType(at::ScalarType type) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI64, DType::kI32,
                      DType::kI16, DType::kI8, DType::kU8, DType::kBool}) {
    if (*ToScalarType(dtype) == type) return dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("no host dtype for ", at::toString(type)));
}

absl::StatusOr<at::Tensor> ViewAsTensor(const HostTensor& tensor) {
  TANDEM_ASSIGN_OR_RETURN(const at::ScalarType type, ToScalarType(tensor.spec.dtype));
  if (static_cast<int64_t>(tensor.bytes.size()) != tensor.spec.num_bytes()) {
    return absl::InvalidArgumentError(absl::StrCat(tensor.spec.ToString(), " has ",
                                                   tensor.bytes.size(), " bytes, want ",
                                                   tensor.spec.num_bytes()));
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
