// Computes the digest of common/weights/word_sums.h over memory of a CUDA device, with the same
// bits as on the host. Free of LibTorch and of CUDA headers. Thread-safe.
#ifndef TANDEM_COMMON_CUDA_WORD_SUMS_KERNEL_H_
#define TANDEM_COMMON_CUDA_WORD_SUMS_KERNEL_H_

#include <cstdint>

#include "common/cuda/kernels.h"

namespace tandem::cuda {

// Adds SumWords of the bytes to sums[0] and sums[1], modulo 2^64. The bytes may begin at any
// address. Enqueues the kernel on the stream and returns.
struct ByteSums {
  const void* bytes = nullptr;
  int64_t num_bytes = 0;
  uint64_t* sums = nullptr;  // [2] in device memory
};
void RunWordSums(const ByteSums& task, Stream stream);

}  // namespace tandem::cuda

#endif  // TANDEM_COMMON_CUDA_WORD_SUMS_KERNEL_H_
