// Converts between HostTensor and at::Tensor, without a copy where dtype and lifetime allow it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

//   INVALID_ARGUMENT  a dtype without a counterpart
absl::StatusOr<at::ScalarType> ToScalarType(DType dtype);
absl::StatusOr<DType> FromScalarType(at::ScalarType type);

// A tensor over the same bytes, which keeps `tensor.owner` alive and must not be written to. Bytes
// that are not aligned for their dtype are copied.
absl::StatusOr<at::Tensor> ViewAsTensor(const HostTensor& tensor);

// A contiguous CPU tensor as named bytes, without a copy if it already is contiguous and on the
// CPU. Keeps `tensor` alive.
absl::StatusOr<HostTensor> ToHostTensor(const std::string& name, const at::Tensor& tensor);

}  // namespace tandem
