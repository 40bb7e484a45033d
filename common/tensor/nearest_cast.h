// CastNearest: weights of a file in the dtype a server computes in. Free of LibTorch, so that a
// rollout server is. Pure; thread-safe.
#ifndef TANDEM_COMMON_TENSOR_NEAREST_CAST_H_
#define TANDEM_COMMON_TENSOR_NEAREST_CAST_H_

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// The tensor in `dtype` (fp32 or bf16), every element rounded to nearest even, through fp32 from
// fp64 as LibTorch does; the same bytes when it has that dtype already.
//   INVALID_ARGUMENT  the tensor is not of a float dtype; `dtype` is another one
absl::StatusOr<HostTensor> CastNearest(const HostTensor& tensor, DType dtype);

}  // namespace tandem

#endif  // TANDEM_COMMON_TENSOR_NEAREST_CAST_H_
