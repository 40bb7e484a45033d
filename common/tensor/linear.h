// Linear layers of the trainer, through oneDNN inside LibTorch (those of the engine:
// packed_matrix.h). On machines without bf16 instructions (no AVX512-BF16, no AMX) oneDNN emulates
// bf16 products at a fifth of the fp32 speed, so there bf16 values are multiplied in fp32: the
// products are exact either way and the sums are fp32 in both.
//
// Thread-compatible; may throw c10::Error (callers wrap with CatchTorch).
#ifndef TANDEM_COMMON_TENSOR_LINEAR_H_
#define TANDEM_COMMON_TENSOR_LINEAR_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tandem {

// Does this machine multiply bf16 matrices with instructions of their own?
bool HasFastBf16();

// x [M, I] times weight [O, I] transposed, plus bias [O]: [M, O], in the dtype of x and weight
// (fp32, or bf16 with bf16 result). x and weight need not be contiguous. No autograd.
at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias = std::nullopt);

}  // namespace tandem

#endif  // TANDEM_COMMON_TENSOR_LINEAR_H_
