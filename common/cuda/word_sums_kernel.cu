// Sums of mixed words (common/weights/digest.h). Words are dealt to threads in turn, each block
// adds up the sums of its threads, and blocks add theirs to memory with atomics. Integer sums
// modulo 2^64 do not depend on the order, so the atomics do not make the result vary.
#include "common/cuda/kernels.h"

#include "common/cuda/device.h"
#include "common/weights/digest.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;  // enough to saturate the memory of any device

// Word `index` of the bytes, padded with zeros past their end.
__device__ inline uint64_t LoadWord(const ByteSums& task, int64_t index, bool aligned) {
  const int64_t at = index * 8;
  const auto* const bytes = static_cast<const uint8_t*>(task.bytes);
  if (aligned && at + 8 <= task.num_bytes) return *reinterpret_cast<const uint64_t*>(bytes + at);
  uint64_t word = 0;
  for (int i = 0; i < 8 && at + i < task.num_bytes; ++i) {
    word |= static_cast<uint64_t>(bytes[at + i]) << (8 * i);
  }
  return word;
}

__global__ void WordSumsKernel(ByteSums task, int64_t num_words, bool aligned) {
  __shared__ unsigned long long shared[2][kThreads / kWarp];
  unsigned long long first = 0, second = 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < num_words;
       i += step) {
    const WordSums terms = TermsOf(LoadWord(task, i, aligned), static_cast<uint64_t>(i));
    first += terms.first;
    second += terms.second;
  }
  first = BlockSum(first, shared[0]);
  second = BlockSum(second, shared[1]);
  if (threadIdx.x != 0) return;
  auto* const sums = reinterpret_cast<unsigned long long*>(task.sums);
  atomicAdd(sums, first);
  atomicAdd(sums + 1, second);
}

}  // namespace

void RunWordSums(const ByteSums& task, Stream stream) {
  const int64_t num_words = (task.num_bytes + 7) / 8;
  if (num_words == 0) return;
  const int64_t blocks = (num_words + kThreads - 1) / kThreads;
  const bool aligned = reinterpret_cast<uintptr_t>(task.bytes) % 8 == 0;
  TANDEM_LAUNCH(WordSumsKernel, GridOf(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads,
                stream, task, num_words, aligned);
}

}  // namespace tandem::cuda
