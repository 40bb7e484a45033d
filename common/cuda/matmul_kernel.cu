// Batch-invariant matrix product. Library products choose their tiles and split the inner dimension
// by the shape of the whole problem, so the bits of one row can change with the number of rows (He
// et al., "Defeating Nondeterminism in LLM Inference", Thinking Machines Lab 2025). Here the inner
// dimension is never split.
//
// A thread block computes one tile of the output. It walks the inner dimension in steps of kDepth:
// it copies the step's part of x and of the weight to shared memory as fp32, and each thread adds
// it to its own sums, one fused multiply-add after the other. The next step is loaded into
// registers meanwhile. Every output is therefore one chain in the order of the inner dimension,
// whatever the tile shape, so the tile shape may be chosen by the number of rows.
#include "common/cuda/device.h"

namespace tandem::cuda {
namespace {

// A tile of kRows x kColumns outputs, computed in steps of kDepth; each thread holds kEachRow x
// kEachColumn sums.
template <int kRows_, int kColumns_, int kDepth_, int kEachRow_, int kEachColumn_>
struct TileShape {
  static constexpr int kRows = kRows_, kColumns = kColumns_, kDepth = kDepth_;
  static constexpr int kEachRow = kEachRow_, kEachColumn = kEachColumn_;
  static constexpr int kThreadsDown = kRows / kEachRow, kThreadsAcross = kColumns / kEachColumn;
  static constexpr int kThreads = kThreadsDown * kThreadsAcross;
  static constexpr int kPieces = kDepth / 8;  // loads of eight elements per row and step
  static_assert(kRows * kPieces % kThreads == 0 && kColumns * kPieces % kThreads == 0);
};
using FewRows = TileShape<16, 32, 64, 2, 2>;
using ManyRows = TileShape<64, 64, 32, 4, 4>;
constexpr int64_t kFewRows = 32;

// Loads rows [first, first + kTileRows) of a matrix [rows, inner], one step at a time; 0 past the
// end.
template <typename T, typename Shape, int kTileRows>
class Reader {
 public:
  __device__ Reader(const void* from, int64_t first, int64_t rows, int64_t inner)
      : from_(static_cast<const T*>(from)), first_(first), rows_(rows), inner_(inner) {}

  // Loads a step into registers, to overlap with the multiplication of the step before.
  __device__ void Load(int64_t begin) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t row = first_ + RowOf(i), at = begin + PieceOf(i) * 8;
      raw_[i] = row < rows_ && at < inner_ ? LoadRaw(from_ + row * inner_ + at) : ZeroRaw(T{});
    }
  }

  __device__ void Store(float (*shared)[kTileRows]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const Eight eight = Widen(raw_[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) shared[PieceOf(i) * 8 + j][RowOf(i)] = eight.x[j];
    }
  }

 private:
  static constexpr int kLoads = kTileRows * Shape::kPieces / Shape::kThreads;
  // Adjacent threads load adjacent pieces, so that accesses coalesce.
  static __device__ int Index(int i) { return static_cast<int>(threadIdx.x) + i * Shape::kThreads; }
  static __device__ int RowOf(int i) { return Index(i) / Shape::kPieces; }
  static __device__ int PieceOf(int i) { return Index(i) % Shape::kPieces; }

  const T* const from_;
  const int64_t first_, rows_, inner_;
  decltype(ZeroRaw(T{})) raw_[kLoads];
};

// Grid: [tiles of columns, tiles of rows].
template <typename T, typename Shape>
__global__ void __launch_bounds__(Shape::kThreads) MatmulKernel(Matmul task) {
  __shared__ float x[Shape::kDepth][Shape::kRows], weight[Shape::kDepth][Shape::kColumns];
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * Shape::kRows;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * Shape::kColumns;
  Reader<T, Shape, Shape::kRows> rows(task.x, first_row, task.rows, task.inner);
  Reader<T, Shape, Shape::kColumns> columns(task.weight, first_column, task.outer, task.inner);
  const int down = static_cast<int>(threadIdx.x) / Shape::kThreadsAcross;
  const int across = static_cast<int>(threadIdx.x) % Shape::kThreadsAcross;
  float sums[Shape::kEachRow][Shape::kEachColumn] = {};
  rows.Load(0);
  columns.Load(0);
  for (int64_t begin = 0; begin < task.inner; begin += Shape::kDepth) {
    rows.Store(x);
    columns.Store(weight);
    __syncthreads();
    if (begin + Shape::kDepth < task.inner) {
      rows.Load(begin + Shape::kDepth);
      columns.Load(begin + Shape::kDepth);
    }
    const int depth =
        static_cast<int>(min(static_cast<int64_t>(Shape::kDepth), task.inner - begin));
    for (int piece = 0; piece < depth; piece += 8) {
#pragma unroll
      for (int k = piece; k < piece + 8; ++k) {
#pragma unroll
        for (int r = 0; r < Shape::kEachRow; ++r) {
          const float one = x[k][down + r * Shape::kThreadsDown];
#pragma unroll
          for (int c = 0; c < Shape::kEachColumn; ++c) {
            sums[r][c] = fmaf(one, weight[k][across + c * Shape::kThreadsAcross], sums[r][c]);
          }
        }
      }
    }
    __syncthreads();
  }
  for (int r = 0; r < Shape::kEachRow; ++r) {
    const int64_t row = first_row + down + r * Shape::kThreadsDown;
    for (int c = 0; c < Shape::kEachColumn; ++c) {
      const int64_t column = first_column + across + c * Shape::kThreadsAcross;
      if (row < task.rows && column < task.outer) task.out[row * task.outer + column] = sums[r][c];
    }
  }
}

template <typename T, typename Shape>
void Multiply(const Matmul& task, Stream stream) {
  const dim3 grid(GridOf((task.outer + Shape::kColumns - 1) / Shape::kColumns),
                  GridOf((task.rows + Shape::kRows - 1) / Shape::kRows), 1);
  auto* const kernel = &MatmulKernel<T, Shape>;
  TANDEM_LAUNCH(kernel, grid, Shape::kThreads, stream, task);
}

template <typename T>
void MultiplyTiles(const Matmul& task, Stream stream) {
  if (task.rows <= kFewRows) return Multiply<T, FewRows>(task, stream);
  Multiply<T, ManyRows>(task, stream);
}

}  // namespace

void RunMatmul(const Matmul& task, Stream stream) {
  if (task.rows == 0 || task.outer == 0) return;
  if (task.element == Element::kBf16) {
    MultiplyTiles<uint16_t>(task, stream);
  } else {
    MultiplyTiles<float>(task, stream);
  }
}

}  // namespace tandem::cuda
