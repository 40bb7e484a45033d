#include "rollout_server/engine/forward/adapter_rows.h"

#include <algorithm>

namespace tandem::rollout {

void AdapterRows::Begin(int64_t rows, absl::FunctionRef<const AdapterWeights*(int64_t)> of) {
  rows_.clear();
  stride_ = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const AdapterWeights* const adapter = of(row);
    rows_.push_back(adapter);
    if (adapter != nullptr) stride_ = std::max(stride_, adapter->largest_rank);
  }
  const int64_t bytes = std::ssize(rows_) * stride_ * 4;
  if (bytes > inner_.size()) inner_ = AlignedBuffer(bytes);
}

void AdapterRows::Project(MatrixPlace place, int64_t row, const float* x) {
  const AdapterWeights* const adapter = rows_[static_cast<size_t>(row)];
  if (adapter == nullptr) return;
  const AdapterMatrix& matrix = place.Of(*adapter);
  if (matrix.rank == 0) return;
  kernels_.project(x, matrix.a.data(), matrix.rank, matrix.depth,
                   inner_.as<float>() + row * stride_);
}

void AdapterRows::Add(MatrixPlace place, int64_t tile, int64_t row, int64_t count, float* values,
                      int64_t stride) const {
  for (int64_t first = 0; first < count;) {
    const AdapterWeights* const adapter = rows_[static_cast<size_t>(row + first)];
    int64_t end = first + 1;
    while (end < count && rows_[static_cast<size_t>(row + end)] == adapter) ++end;
    if (adapter != nullptr) {
      const AdapterMatrix& matrix = place.Of(*adapter);
      if (static_cast<size_t>(tile) < matrix.tiles.size()) {
        for (const AdapterMatrix::Part& part : matrix.tiles[static_cast<size_t>(tile)]) {
          const LowRankRows inner = {inner_.as<float>() + (row + first) * stride_ + part.first,
                                     end - first, part.rank, stride_};
          kernels_.add_low_rank(inner, matrix.b.data() + part.b, values + first * stride, stride);
        }
      }
    }
    first = end;
  }
}

}  // namespace tandem::rollout
