// Linear layers through oneDNN inside LibTorch: packed once for the engine, over plain weights for the
// trainer. On machines without bf16 instructions (no AVX512-BF16, no AMX) oneDNN emulates bf16 products
// at a fifth of the fp32 speed, so there bf16 values are multiplied in fp32: the products are exact
// either way and the sums are fp32 in both.
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

// x [M, I] times weight [O, I] transposed, plus bias [O]: [M, O], in the dtype of x and weight (fp32, or
// bf16 with bf16 result). x and weight need not be contiguous. No autograd.
at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight,
                         const std::optional<at::Tensor>& bias = std::nullopt);

// A weight packed for repeated use with about `expected_rows` rows.
class PackedLinear {
 public:
  PackedLinear() = default;

  // weight [O, I] fp32 or bf16, bias [O] fp32 or undefined. A bf16 weight makes Run round its input to
  // bf16; the bias is added in fp32.
  PackedLinear(const at::Tensor& weight, const at::Tensor& bias, int64_t expected_rows);

  // x [M, I] fp32 contiguous -> [M, O] fp32. With a bf16 weight the input is rounded to bf16 (nearest
  // even) and, where the machine has bf16 instructions, so is the product.
  at::Tensor Run(const at::Tensor& x) const;

  int64_t out_features() const { return out_features_; }

 private:
  at::Tensor packed_;  // oneDNN layout
  at::Tensor bias_;    // fp32 or undefined
  bool round_input_ = false;
  bool native_bf16_ = false;
  int64_t out_features_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_COMMON_TENSOR_LINEAR_H_
