// The cast of masters to bf16, by the very functions of the CPU's.
#include "common/cuda/pieces.h"
#include "common/tensor/bf16_rounding.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {
namespace {

using namespace tandem::cuda;  // pieces.h, device.h

constexpr int kThreads = 256;

template <bool kDither>
__global__ void CastKernel(WeightCast task, bool fit) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (at >= task.count) return;
  const Eight masters = Widen(LoadPiece(task.masters, at, task.count, fit));
  uint16_t bits[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if constexpr (kDither) {
      const auto index = static_cast<uint64_t>(task.first + at + i);
      bits[i] = tandem::DitherBf16(masters.x[i], task.name_hash, index);
    } else {
      bits[i] = tandem::NearestBf16(masters.x[i]);
    }
  }
  StorePiece(bits, task.out, at, task.count, fit);
}

}  // namespace

void RunWeightCast(const WeightCast& task, Stream stream) {
  if (task.count == 0) return;
  const bool fit = PiecesFit(task.count, {task.masters, task.out});
  const unsigned grid = GridOf((NumPieces(task.count) + kThreads - 1) / kThreads);
  if (task.dither) {
    TANDEM_LAUNCH(CastKernel<true>, grid, kThreads, stream, task, fit);
  } else {
    TANDEM_LAUNCH(CastKernel<false>, grid, kThreads, stream, task, fit);
  }
}

}  // namespace tandem::trainer::cuda
