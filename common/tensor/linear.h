// Linear layers of the trainer, through oneDNN inside LibTorch (the engine's are in
// packed_matrix.h). On machines without bf16 instructions (no AVX512-BF16, no AMX), oneDNN emulates
// bf16 products at a fifth of the fp32 speed, so bf16 values are multiplied in fp32 there: products
// are exact and sums are fp32 in both cases.
//
// Thread-compatible. May throw c10::Error; callers wrap calls with CatchTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace tandem {

// True if this machine has instructions for bf16 matrix products.
bool HasFastBf16();

// x [M, I] times the transpose of weight [O, I], plus bias [O]: [M, O], in the dtype of x and
// weight (fp32, or bf16 with a bf16 result). x and weight need not be contiguous. No autograd.
at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias = std::nullopt);

}  // namespace tandem
