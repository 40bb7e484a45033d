#include "trainer/policy/cpu/layer_kernels.h"

#include "trainer/policy/cpu/vector_math.h"

namespace tandem::trainer {

TANDEM_VECTOR_CLONES
void RmsNormRowsBackward(const float* out_grad, const float* x, const float* weight,
                         const float* rstd, int64_t rows, int64_t width, bool accumulate,
                         float* x_grad) {
  for (int64_t r = 0; r < rows; ++r, out_grad += width, x += width, x_grad += width) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < width; ++c) dot += out_grad[c] * weight[c] * x[c];
    const float scale = rstd[r];
    const float along_x = scale * scale * scale * dot / static_cast<float>(width);
    const float keep = accumulate ? 1.0f : 0.0f;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) {
      const float grad = scale * out_grad[c] * weight[c] - along_x * x[c];
      x_grad[c] = (keep != 0.0f ? x_grad[c] : 0.0f) + grad;
    }
  }
}

TANDEM_VECTOR_CLONES
void RmsNormWeightGrad(const float* out_grad, const float* x, const float* rstd, int64_t rows,
                       int64_t width, int64_t begin, int64_t end, float* weight_grad) {
  for (int64_t r = 0; r < rows; ++r, out_grad += width, x += width) {
    const float scale = rstd[r];
#pragma omp simd
    for (int64_t c = begin; c < end; ++c) weight_grad[c] += out_grad[c] * x[c] * scale;
  }
}

// g S(2u) with u = sqrt(2 / pi) (g + 0.044715 g^3) and the sigmoid S, where d 2u / dg = 2 sqrt(2 / pi)
// (1 + 3 * 0.044715 g^2).
TANDEM_VECTOR_CLONES
void GeGluBackward(const float* out_grad, int64_t count, float* gate, float* up) {
  constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float g = gate[i], square = 0.044715f * g * g;
    const float sigmoid = 1.0f / (1.0f + VectorExp(-kTwiceRoot * (g + square * g)));
    const float gelu = g * sigmoid;
    const float slope = kTwiceRoot * (1.0f + 3.0f * square);
    const float gate_grad = out_grad[i] * up[i] * (sigmoid + gelu * (1.0f - sigmoid) * slope);
    up[i] = out_grad[i] * gelu;
    gate[i] = gate_grad;
  }
}

TANDEM_VECTOR_CLONES
void SwiGluBackward(const float* out_grad, int64_t count, float* gate, float* up) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float sigmoid = 1.0f / (1.0f + VectorExp(-gate[i]));
    const float silu = gate[i] * sigmoid;
    const float gate_grad = out_grad[i] * up[i] * (sigmoid + silu * (1.0f - sigmoid));
    up[i] = out_grad[i] * silu;
    gate[i] = gate_grad;
  }
}

}  // namespace tandem::trainer
