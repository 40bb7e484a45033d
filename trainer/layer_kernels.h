// Elementwise kernels of a decoder layer over a range of rows, fp32, forward and backward: root
// mean square norm, rotary embedding, SwiGLU. layer_ops runs them in parallel. Free of LibTorch.
#ifndef TANDEM_TRAINER_LAYER_KERNELS_H_
#define TANDEM_TRAINER_LAYER_KERNELS_H_

#include <cstdint>

namespace tandem::trainer {

// out[r] = weight * x[r] * rstd[r],  rstd[r] = 1 / sqrt(mean(x[r]^2) + eps);  x, out [rows, width].
void RmsNormRows(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                 float* out, float* rstd);

// x_grad[r] (+)= rstd (weight * out_grad - x rstd^2 mean(weight * out_grad * x)).
void RmsNormRowsBackward(const float* out_grad, const float* x, const float* weight,
                         const float* rstd, int64_t rows, int64_t width, bool accumulate,
                         float* x_grad);

// weight_grad[c] += sum over rows of out_grad * x * rstd, for columns [begin, end).
void RmsNormWeightGrad(const float* out_grad, const float* x, const float* rstd, int64_t rows,
                       int64_t width, int64_t begin, int64_t end, float* weight_grad);

// Rotates each head's pairs (i, i + dim / 2) by the row's angles, in place. x [rows, heads, dim];
// cosine, sine [rows, dim / 2]. direction -1 turns back: the gradient.
void RotateRows(float* x, const float* cosine, const float* sine, int64_t rows, int64_t heads,
                int64_t dim, float direction);

// out = gate * sigmoid(gate) * up, over count elements.
void SwiGlu(const float* gate, const float* up, int64_t count, float* out);

// gate and up become their gradients.
void SwiGluBackward(const float* out_grad, int64_t count, float* gate, float* up);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_LAYER_KERNELS_H_
