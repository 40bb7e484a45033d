// AdapterRows: the adapters of the rows of a step, and their inner values (LoRA: x A^T) at the matrix
// that is computed. Rows of several adapters may stand in one step; neighbours with the same one are
// computed together. A row's result depends on its own input and adapter alone.
//
// Begin from one thread; Project and Add from several, for different rows or tiles.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/model/forward_kernels.h"
#include "common/model/quantisation_plan.h"
#include "common/tensor/aligned_buffer.h"
#include "rollout_server/engine/forward/adapter_weights.h"

namespace tandem::rollout {

// A matrix of the engine.
struct MatrixPlace {
  int64_t layer = 0;
  std::optional<Site> site;  // none: the head

  const AdapterMatrix& Of(const AdapterWeights& adapter) const {
    return site ? adapter.at(layer, *site) : adapter.head;
  }
};

class AdapterRows {
 public:
  explicit AdapterRows(const ForwardKernels& kernels) : kernels_(kernels) {}

  // Takes of(i), the adapter of row i (null: none), for all rows of a step, which it must outlive.
  void Begin(int64_t rows, absl::FunctionRef<const AdapterWeights*(int64_t)> of);
  bool any() const { return stride_ > 0; }

  // The inner values of `row`, whose input to the matrix is x.
  void Project(MatrixPlace place, int64_t row, const float* x);
  // Adds what the adapters give to a tile of the matrix's outputs, for `count` rows from `row` on;
  // values [count, kTileColumns], `stride` apart.
  void Add(MatrixPlace place, int64_t tile, int64_t row, int64_t count, float* values,
           int64_t stride) const;

 private:
  const ForwardKernels& kernels_;
  std::vector<const AdapterWeights*> rows_;
  int64_t stride_ = 0;   // the largest rank of a matrix; 0: no row has an adapter
  AlignedBuffer inner_;  // [rows, stride]
};

}  // namespace tandem::rollout
