// CastNearest: weights of a file in the dtype a server computes in, and what both it and an export
// read the file's elements with. Free of LibTorch, so that a rollout server is. Pure; thread-safe.
#ifndef TANDEM_COMMON_TENSOR_NEAREST_CAST_H_
#define TANDEM_COMMON_TENSOR_NEAREST_CAST_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// Element `i` of `bytes`, which are of a float dtype (fp64, fp32, bf16 or fp16) and may lie at any
// address. Exact, but for fp64, which is rounded to nearest even.
float ElementAsFloat(DType dtype, const std::byte* bytes, int64_t i);

// The tensor in `dtype` (fp32 or bf16), every element rounded to nearest even, through fp32 from
// fp64 as LibTorch does; the same bytes when it has that dtype already.
//   INVALID_ARGUMENT  the tensor is not of a float dtype; `dtype` is another one
absl::StatusOr<HostTensor> CastNearest(const HostTensor& tensor, DType dtype);

}  // namespace tandem

#endif  // TANDEM_COMMON_TENSOR_NEAREST_CAST_H_
