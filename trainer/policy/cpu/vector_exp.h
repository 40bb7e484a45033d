// An exponential and a tanh that the compiler can vectorise, and an attribute that compiles a kernel once per
// instruction set. Used by the CPU kernels of the trainer. Free of LibTorch; pure.
#pragma once

#include <bit>
#include <cstdint>

// Compiles a function once per instruction set and selects one at load time. Sanitizers start after
// the selection, so their builds use the plain version.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TANDEM_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TANDEM_VECTOR_CLONES
#endif

namespace tandem {

// e^x to about 2 units in the last place for x in [-87, 88]. Clamps x to that range, so the result
// is never infinite. The reduction and the polynomial are those of expf in the Cephes library
// (Moshier).
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

// tanh x: a polynomial near 0 and 1 - 2 / (e^2x + 1) elsewhere, as tanhf of Cephes.
__attribute__((always_inline)) inline float VectorTanh(float x) {
  const float size = x < 0.0f ? -x : x;
  const float far = 1.0f - 2.0f / (VectorExp(size + size) + 1.0f);
  const float s = x * x;
  float p = s * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * s - 5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s - 3.33332819422e-1f;
  const float near = p * s * x + x;
  return size < 0.625f ? near : (x < 0.0f ? -far : far);
}

}  // namespace tandem
