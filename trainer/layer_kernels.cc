#include "trainer/layer_kernels.h"

#include <cmath>

#include "trainer/vector_math.h"

namespace tandem::trainer {

TANDEM_VECTOR_CLONES
void RmsNormRows(const float* x, const float* weight, float eps, int64_t rows, int64_t width,
                 float* out, float* rstd) {
  for (int64_t r = 0; r < rows; ++r, x += width, out += width) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < width; ++c) sum += x[c] * x[c];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + eps);
    rstd[r] = scale;
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) out[c] = weight[c] * (x[c] * scale);
  }
}

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

TANDEM_VECTOR_CLONES
void RotateRows(float* x, const float* cosine, const float* sine, int64_t rows, int64_t heads,
                int64_t dim, float direction) {
  const int64_t half = dim / 2;
  for (int64_t r = 0; r < rows; ++r, cosine += half, sine += half) {
    for (int64_t h = 0; h < heads; ++h, x += dim) {
#pragma omp simd
      for (int64_t i = 0; i < half; ++i) {
        const float first = x[i], second = x[i + half], s = sine[i] * direction;
        x[i] = first * cosine[i] - second * s;
        x[i + half] = second * cosine[i] + first * s;
      }
    }
  }
}

TANDEM_VECTOR_CLONES
void SwiGlu(const float* gate, const float* up, int64_t count, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    out[i] = gate[i] / (1.0f + VectorExp(-gate[i])) * up[i];
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
