// Runs CUDA kernels on the CPU: the part of CUDA that .cu files use, so that tests can run kernels
// where there is no GPU. The compiler gets it in front of the file (-include), which then compiles
// as C++.
//
// The threads of a block are fibres of one CPU thread; each runs until it waits for others, at a
// barrier or in an exchange within its warp. Blocks run one after the other. Indices, masks,
// barriers and the order of sums are therefore those of the kernel; speed, memory spaces and the
// device's own rounding of exp, log and sin are not. Threads that diverge at a barrier end the
// process with a message. Most missing barriers are found if a test also runs with
// EMULATED_ORDER=falling, in which threads take turns from the last one on.
#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#define TANDEM_EMULATED_CUDA 1

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace tandem::testing {

void RunEmulated(dim3 grid, int threads, const std::function<void()>& kernel);
void WaitForBlock();
void WaitForWarp();

inline constexpr int kExchangeBytes = 16;
// The slots [32, kExchangeBytes] of this thread's warp for its next exchange. There are two sets,
// used in turn: a lane may write for the next exchange while another one still reads. So an
// exchange waits once only, and does not add a barrier that the kernel does not have.
unsigned char* NextSlots();

// The value from lane `from(own lane)`; the lane's own value if that is not a lane.
template <typename T, typename From>
T Exchange(const T& value, const From& from) {
  static_assert(sizeof(T) <= kExchangeBytes);
  unsigned char* const slots = NextSlots();
  const int lane = static_cast<int>(threadIdx.x) % 32, source = from(lane);
  std::memcpy(slots + lane * kExchangeBytes, &value, sizeof(T));
  WaitForWarp();
  T got = value;
  if (source >= 0 && source < 32) {
    std::memcpy(&got, slots + source * kExchangeBytes, sizeof(T));
  }
  return got;
}

// Bit i is the argument of lane i of the warp.
inline unsigned Ballot(bool yes) {
  unsigned char* const slots = NextSlots();
  slots[threadIdx.x % 32 * kExchangeBytes] = yes ? 1 : 0;
  WaitForWarp();
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (slots[lane * kExchangeBytes] != 0) votes |= 1u << lane;
  }
  return votes;
}

}  // namespace tandem::testing

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)

#define TANDEM_LAUNCH(kernel, grid, threads, stream, ...)                        \
  do {                                                                           \
    (void)(stream);                                                              \
    ::tandem::testing::RunEmulated(grid, threads, [&] { kernel(__VA_ARGS__); }); \
  } while (false)

inline void __syncthreads() { tandem::testing::WaitForBlock(); }
inline void __syncwarp() { tandem::testing::WaitForWarp(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return tandem::testing::Exchange(value, [mask](int lane) { return lane ^ mask; });
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int delta) {
  return tandem::testing::Exchange(value, [delta](int lane) { return lane - delta; });
}
template <typename T>
T __shfl_down_sync(unsigned, T value, int delta) {
  return tandem::testing::Exchange(value, [delta](int lane) { return lane + delta; });
}
template <typename T>
T __shfl_sync(unsigned, T value, int source) {
  return tandem::testing::Exchange(value, [source](int) { return source; });
}
inline unsigned __ballot_sync(unsigned, bool yes) { return tandem::testing::Ballot(yes); }

template <typename T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
using std::max;
using std::min;

using cudaError_t = int;
inline constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return ""; }
