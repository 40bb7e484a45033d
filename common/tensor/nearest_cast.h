// CastNearest: converts weights of a file to the dtype in which a server computes, and reads
// elements of such files for it and for exports. Free of LibTorch, so that rollout servers can use
// it. Pure; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "common/weights/host_tensor.h"

namespace tandem {

// Element `i` of `bytes`, which have a float dtype (fp64, fp32, bf16 or fp16) and any alignment.
// Exact, except for fp64, which is rounded to nearest even.
float ElementAsFloat(DType dtype, const std::byte* bytes, int64_t i);

// Converts the tensor to `dtype` (fp32 or bf16), rounding every element to nearest even; fp64 goes
// through fp32, as in LibTorch. A tensor that has that dtype already is returned as it is.
//   INVALID_ARGUMENT  the tensor has no float dtype, or `dtype` is neither fp32 nor bf16
absl::StatusOr<HostTensor> CastNearest(const HostTensor& tensor, DType dtype);

}  // namespace tandem
