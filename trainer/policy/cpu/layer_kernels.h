// Backward kernels of a decoder layer over a range of rows, in fp32: root mean square norm,
// SwiGLU and GEGLU. cpu_layer_ops.cc runs them in parallel. Free of LibTorch.
#pragma once

#include <cstdint>

namespace tandem::trainer {

// x_grad[r] (+)= rstd (weight * out_grad - x rstd^2 mean(weight * out_grad * x)).
void RmsNormRowsBackward(const float* out_grad, const float* x, const float* weight,
                         const float* rstd, int64_t rows, int64_t width, bool accumulate,
                         float* x_grad);

// weight_grad[c] += sum over rows of out_grad * x * rstd, for columns [begin, end).
void RmsNormWeightGrad(const float* out_grad, const float* x, const float* rstd, int64_t rows,
                       int64_t width, int64_t begin, int64_t end, float* weight_grad);

// gate and up become their gradients.
void GeGluBackward(const float* out_grad, int64_t count, float* gate, float* up);
void SwiGluBackward(const float* out_grad, int64_t count, float* gate, float* up);

}  // namespace tandem::trainer
