// What the kernels share: bf16 conversion, wide loads, and sums in a fixed order. Only for .cu
// files.
//
// nvcc compiles these files. Tests also compile them for the CPU, with
// tests/support/device/cuda_emulator.h in place of CUDA's headers, so they may use only what that
// emulator provides.
#pragma once

#ifndef TANDEM_EMULATED_CUDA
#include <cuda_runtime.h>
#define TANDEM_LAUNCH(kernel, grid, threads, stream, ...) \
  kernel<<<grid, threads, 0, stream>>>(__VA_ARGS__)
#endif

#include <cstdint>

#include "common/cuda/kernels.h"

namespace tandem::cuda {

inline constexpr unsigned kAllLanes = 0xffffffff;
inline constexpr int kWarp = 32;

inline unsigned GridOf(int64_t blocks) { return static_cast<unsigned>(blocks); }

__device__ inline float Widen(float x) { return x; }
__device__ inline float Widen(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

// Rounds to nearest, ties to even; NaN stays NaN. Values beyond the largest bf16 become infinity
// here, but not in NearestBf16 of common/tensor/bf16_rounding.h, which rounds weights.
__device__ inline uint16_t NearestBf16(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

__device__ inline void Store(float x, float* out) { *out = x; }
__device__ inline void Store(float x, uint16_t* out) { *out = NearestBf16(x); }

// Eight consecutive elements, whose address must be a multiple of eight elements.
struct Eight {
  float x[8];
};
__device__ inline Eight LoadEight(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  const float4 b = *reinterpret_cast<const float4*>(from + 4);
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

// Eight elements as loaded, not converted yet: four registers for bf16, eight for fp32. Keeping
// loads in this form lets a thread have more of them in flight.
struct RawBf16 {
  uint4 bits;
};
struct RawFp32 {
  float4 a, b;
};
__device__ inline RawBf16 LoadRaw(const uint16_t* from) {
  return {*reinterpret_cast<const uint4*>(from)};
}
__device__ inline RawFp32 LoadRaw(const float* from) {
  return {*reinterpret_cast<const float4*>(from), *reinterpret_cast<const float4*>(from + 4)};
}
__device__ inline RawBf16 ZeroRaw(uint16_t) { return {uint4{0, 0, 0, 0}}; }
__device__ inline RawFp32 ZeroRaw(float) { return {float4{0, 0, 0, 0}, float4{0, 0, 0, 0}}; }

__device__ inline Eight Widen(const RawFp32& raw) {
  return {{raw.a.x, raw.a.y, raw.a.z, raw.a.w, raw.b.x, raw.b.y, raw.b.z, raw.b.w}};
}
__device__ inline Eight Widen(const RawBf16& raw) {
  const uint32_t words[4] = {raw.bits.x, raw.bits.y, raw.bits.z, raw.bits.w};
  Eight eight;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    eight.x[2 * i] = __uint_as_float(words[i] << 16);
    eight.x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
  return eight;
}

// The sum over all lanes of a warp, returned at every lane. The additions form the same tree every
// time.
template <typename T>
__device__ inline T WarpSum(T x) {
  for (int step = kWarp / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}
__device__ inline float WarpMax(float x) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  }
  return x;
}

// The sum over all threads of a block, returned at every thread; the warps' sums are added in their
// order. `shared` has one T per warp and may be reused after the next barrier.
template <typename T>
__device__ inline T BlockSum(T x, T* shared) {
  x = WarpSum(x);
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = x;
  __syncthreads();
  T sum = 0;
  for (unsigned w = 0; w < blockDim.x / kWarp; ++w) sum += shared[w];
  return sum;
}

}  // namespace tandem::cuda
