// Vector arithmetic of the trainer's CPU kernels: a small matrix product and an exponential that
// the compiler vectorises. Used by attention_kernel.cc, layer_kernels.cc, chunked_logprobs.cc and
// optimizer.cc. Free of LibTorch; everything here is pure.
#ifndef TANDEM_TRAINER_VECTOR_MATH_H_
#define TANDEM_TRAINER_VECTOR_MATH_H_

#include <bit>
#include <cstdint>

// Compiles a function once per instruction set and picks at load time. Sanitizers start after the
// resolvers run, so their builds get the plain version.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TANDEM_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TANDEM_VECTOR_CLONES
#endif

namespace tandem::trainer {

// e^x to about 2 units in the last place for x in [-87, 88]; clamped outside, so never infinite.
__attribute__((always_inline)) inline float VectorExp(float x) {
  x = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float n = (x * 1.44269504088896341f + kRound) - kRound;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float mantissa = p * r * r + r + 1.0f;
  return mantissa * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

// C[m, n] = A[m, k] B[k, n], or C += with `accumulate`. A's element (i, l) is a[i * a_row + l *
// a_col], so a transposed A costs nothing; B and C are row-major with row strides ldb and ldc. The
// order of the sum over k is fixed: the result does not depend on threads.
void SmallMatmul(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col,
                 const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_VECTOR_MATH_H_
