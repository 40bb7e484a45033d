// Root mean square norm, forward and backward, each input read once.
//
// A row's pieces are spread over its lanes: a power of two of them where a warp is enough, several
// rows side by side in a block of threads, else a whole block. A lane keeps its pieces of the row
// in registers between the sum over the row and what needs the sum. Backward, a block goes through
// a fixed number of rows one after the other and has the weight's gradient of its columns in
// registers too; its share goes to scratch, and a second kernel adds the shares in order.
#include <algorithm>
#include <bit>

#include "common/cuda/pieces.h"
#include "trainer/policy/cuda/training_kernels.h"

namespace tandem::trainer::cuda {
namespace {

using namespace tandem::cuda;  // pieces.h, device.h

constexpr int kNarrowThreads = 256;  // where rows lie side by side
constexpr int kMostThreads = 512;
constexpr int kMostWarps = kMostThreads / kWarp;
constexpr int kRowsEach = 16;  // one after the other, backward

// Pieces of a row that a lane has at most.
constexpr int kOnePiece = 1, kManyPieces = 4;
static_assert(kMaxNormWidth <= 8 * kManyPieces * kMostThreads);

struct RowSplit {
  int lanes = 0;     // of a row
  int threads = 0;   // of a block
  int side = 0;      // rows side by side
  bool fit = false;  // PiecesFit
};

RowSplit SplitOf(int64_t width, bool fit) {
  const int64_t pieces = NumPieces(width);
  if (pieces <= kWarp) {
    const int lanes = static_cast<int>(std::bit_ceil(static_cast<uint64_t>(pieces)));
    return {lanes, kNarrowThreads, kNarrowThreads / lanes, fit};
  }
  const auto all = static_cast<int>(std::min<int64_t>(kMostThreads, pieces));
  const int threads = (all + kWarp - 1) / kWarp * kWarp;
  return {threads, threads, 1, fit};
}

// Over the lanes of a row, at each of them. All threads of the block take part.
__device__ float RowSum(float x, int lanes, float* shared) {
  if (lanes > kWarp) return BlockSum(x, shared);
  for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

template <typename X, typename V, int kKept>
__global__ void __launch_bounds__(kMostThreads) NormKernel(Norm task, RowSplit split) {
  __shared__ float sums[kMostWarps];
  const int width = static_cast<int>(task.width);
  const int first = static_cast<int>(threadIdx.x) % split.lanes * 8, step = split.lanes * 8;
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * split.side + static_cast<int>(threadIdx.x) / split.lanes;
  const bool inside = row < task.rows;
  const X* from = static_cast<const X*>(task.x) + row * width;
  decltype(ZeroRaw(X{})) raw[kKept];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int at = first + k * step;
    raw[k] = inside && at < width ? LoadPiece(from, at, width, split.fit) : ZeroRaw(X{});
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const Eight x = Widen(raw[k]);
#pragma unroll
    for (const float one : x.x) squares += one * one;
  }
  const float mean = RowSum(squares, split.lanes, sums) / static_cast<float>(width);
  const float rstd = 1.0f / sqrtf(mean + task.eps);
  if (!inside) return;
  if (first == 0) task.rstd[row] = rstd;
  V* to = static_cast<V*>(task.value) + row * width;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int at = first + k * step;
    if (at >= width) break;
    const Eight weight = Widen(LoadPiece(task.weight, at, width, split.fit));
    Eight x = Widen(raw[k]);
#pragma unroll
    for (int i = 0; i < 8; ++i) x.x[i] = weight.x[i] * (x.x[i] * rstd);
    StorePiece(x, to, at, width, split.fit);
  }
}

// A lane's pieces of one row after the other.
template <typename G, typename X, typename D, int kKept>
class RowsBackward {
 public:
  __device__ RowsBackward(const NormBackward& task, const RowSplit& split)
      : task_(task),
        split_(split),
        width_(static_cast<int>(task.width)),
        first_(static_cast<int>(threadIdx.x) % split.lanes * 8) {}

  // `shared`: a float for each warp.
  __device__ void Run(int64_t row, float* shared) {
    const bool inside = row < task_.rows;
    Load(row, inside);
    float dot = 0;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if (At(k) >= width_) break;
      const Eight weight = Weight(k), grad = Widen(grad_[k]), x = Widen(x_[k]);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot += grad.x[i] * weight.x[i] * x.x[i];
    }
    dot = RowSum(dot, split_.lanes, shared);
    if (!inside) return;
    const float rstd = task_.rstd[row];
    const float along_x = rstd * rstd * rstd * dot / static_cast<float>(width_);
    D* to = static_cast<D*>(task_.x_grad) + row * width_;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if (At(k) >= width_) break;
      StoreGrad(k, rstd, along_x, to);
    }
  }

  // What the rows so far give to the weight's gradient, at this lane's k-th piece, which begins at
  // column At(k).
  __device__ const Eight& columns(int k) const { return columns_[k]; }
  __device__ int At(int k) const { return first_ + k * split_.lanes * 8; }

 private:
  __device__ void Load(int64_t row, bool inside) {
    const G* grads = static_cast<const G*>(task_.value_grad) + row * width_;
    const X* xs = static_cast<const X*>(task_.x) + row * width_;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      const bool here = inside && At(k) < width_;
      grad_[k] = here ? LoadPiece(grads, At(k), width_, split_.fit) : ZeroRaw(G{});
      x_[k] = here ? LoadPiece(xs, At(k), width_, split_.fit) : ZeroRaw(X{});
    }
  }

  __device__ Eight Weight(int k) const {
    return Widen(LoadPiece(task_.weight, At(k), width_, split_.fit));
  }

  __device__ void StoreGrad(int k, float rstd, float along_x, D* to) {
    const Eight weight = Weight(k), grad = Widen(grad_[k]), x = Widen(x_[k]);
    Eight out = {};
    if (task_.accumulate) out = Widen(LoadPiece(to, At(k), width_, split_.fit));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out.x[i] += rstd * grad.x[i] * weight.x[i] - along_x * x.x[i];
      columns_[k].x[i] += grad.x[i] * x.x[i] * rstd;
    }
    StorePiece(out, to, At(k), width_, split_.fit);
  }

  const NormBackward& task_;
  const RowSplit& split_;
  const int width_, first_;
  decltype(ZeroRaw(G{})) grad_[kKept];
  decltype(ZeroRaw(X{})) x_[kKept];
  Eight columns_[kKept] = {};
};

template <typename G, typename X, typename D, int kKept>
__global__ void __launch_bounds__(kMostThreads)
    NormBackwardKernel(NormBackward task, RowSplit split) {
  __shared__ float sums[2][kMostWarps];  // in turns: one barrier a row is enough
  __shared__ float lanes[kNarrowThreads][8];
  const int width = static_cast<int>(task.width);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRowsEach * split.side;
  const int own = static_cast<int>(threadIdx.x) / split.lanes;
  RowsBackward<G, X, D, kKept> rows(task, split);
  for (int i = 0; i < kRowsEach && first + i * split.side < task.rows; ++i) {
    rows.Run(first + i * split.side + own, sums[i % 2]);
  }
  if (task.weight_grad == nullptr) return;
  float* share = task.scratch + static_cast<int64_t>(blockIdx.x) * width;
  if (split.side == 1) {
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if (rows.At(k) >= width) break;
      StorePiece(rows.columns(k), share, rows.At(k), width, split.fit);
    }
    return;
  }
  // Rows side by side have one piece a lane.
#pragma unroll
  for (int i = 0; i < 8; ++i) lanes[threadIdx.x][i] = rows.columns(0).x[i];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < width; c += kNarrowThreads) {
    float sum = 0;
    for (int s = 0; s < split.side; ++s) sum += lanes[s * split.lanes + c / 8][c % 8];
    share[c] = sum;
  }
}

// Grid: 32 columns each. A warp adds up neighbouring shares, then the warps are added in order.
constexpr int kShareWarps = 16;
__global__ void AddShares(const float* scratch, int64_t shares, int64_t width, float* weight_grad) {
  __shared__ float sums[kShareWarps][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + lane;
  const int64_t each = (shares + kShareWarps - 1) / kShareWarps;
  float sum = 0;
  if (column < width) {
    const int64_t end = min(shares, (warp + 1) * each);
#pragma unroll 8
    for (int64_t s = warp * each; s < end; ++s) sum += scratch[s * width + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= width) return;
  for (int w = 1; w < kShareWarps; ++w) sum += sums[w][lane];
  weight_grad[column] += sum;
}

int64_t NumShares(int64_t rows, const RowSplit& split) {
  const int64_t each = int64_t{kRowsEach} * split.side;
  return (rows + each - 1) / each;
}

bool OnePieceEach(int64_t width, const RowSplit& split) { return NumPieces(width) <= split.lanes; }

template <int kKept>
void Forward(const Norm& task, const RowSplit& split, Stream stream) {
  const unsigned grid = GridOf((task.rows + split.side - 1) / split.side);
  WithElement(task.x_element, [&](auto x) {
    WithElement(task.value_element, [&](auto v) {
      auto* const kernel = &NormKernel<decltype(x), decltype(v), kKept>;
      TANDEM_LAUNCH(kernel, grid, split.threads, stream, task, split);
    });
  });
}

template <int kKept>
void Backward(const NormBackward& task, const RowSplit& split, Stream stream) {
  const unsigned grid = GridOf(NumShares(task.rows, split));
  WithElement(task.value_grad_element, [&](auto g) {
    WithElement(task.x_element, [&](auto x) {
      WithElement(task.x_grad_element, [&](auto d) {
        auto* const kernel = &NormBackwardKernel<decltype(g), decltype(x), decltype(d), kKept>;
        TANDEM_LAUNCH(kernel, grid, split.threads, stream, task, split);
      });
    });
  });
}

}  // namespace

void RunNorm(const Norm& task, Stream stream) {
  if (task.rows == 0) return;
  const RowSplit split =
      SplitOf(task.width, PiecesFit(task.width, {task.x, task.weight, task.value}));
  if (OnePieceEach(task.width, split)) return Forward<kOnePiece>(task, split, stream);
  Forward<kManyPieces>(task, split, stream);
}

int64_t NormScratch(int64_t rows, int64_t width) {
  return NumShares(rows, SplitOf(width, false)) * width;
}

void RunNormBackward(const NormBackward& task, Stream stream) {
  if (task.rows == 0) return;
  const RowSplit split = SplitOf(
      task.width,
      PiecesFit(task.width, {task.value_grad, task.x, task.weight, task.x_grad, task.scratch}));
  if (OnePieceEach(task.width, split)) {
    Backward<kOnePiece>(task, split, stream);
  } else {
    Backward<kManyPieces>(task, split, stream);
  }
  if (task.weight_grad == nullptr) return;
  TANDEM_LAUNCH(AddShares, GridOf((task.width + kWarp - 1) / kWarp), kShareWarps * kWarp, stream,
                task.scratch, NumShares(task.rows, split), task.width, task.weight_grad);
}

}  // namespace tandem::trainer::cuda
