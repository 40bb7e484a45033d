// CudaForward: the model's layers and its KV cache on a CUDA device; the runner gives it a step's
// inputs there. It waits for nothing and looks at no value of the host but sizes, so that a call
// can be captured as a graph. Includes LibTorch. Everything runs on the current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "common/cuda/kernels.h"
#include "common/model/model_config.h"
#include "common/model/numerics.h"
#include "rollout_server/engine/cuda/cuda_weights.h"
#include "rollout_server/engine/forward/staged_weights.h"
#include "rollout_server/engine/schedule/scheduler.h"

namespace tandem::rollout {

// Neighbouring rows that attend in one way, as RowRange (step_inputs.h).
struct DeviceRange {
  int64_t first = 0, count = 0;
  bool flash = false;
  int64_t longest_query = 0, longest_key = 0;
  at::Tensor query_ends, key_ends, slots;  // with flash
};

struct DeviceInputs {
  at::Tensor ids, positions, sequences, contexts;  // [N] int32; a padded row: context 0
  at::Tensor slots;                                // [N] int64; a padded row: -1
  at::Tensor block_tables;                         // [S, max_blocks] int32
  int64_t max_blocks = 0;
  std::vector<DeviceRange> ranges;
};

class CudaForward {
 public:
  // Allocates the cache: num_blocks blocks. With `own_products` linear layers are RunMatmul's,
  // whose rows do not see their company; else cuBLAS's.
  CudaForward(const ModelConfig& config, ComputeDType dtype, int64_t num_blocks, bool own_products);

  // The residual stream, and what the last layer still has to add to it.
  struct Residual {
    at::Tensor hidden, delta;  // [N, E] fp32
    const at::Tensor* bias = nullptr;
  };
  Residual Layers(const CudaWeights& weights, const DeviceInputs& inputs) const;

  // [R, V] fp32 of rows [R] int64 of the residual stream, of which none is asked for twice.
  at::Tensor Logits(const CudaWeights& weights, Residual& residual, const at::Tensor& rows) const;

  // All layers, in one kernel a round (CopyRounds).
  void CopyBlocks(std::span<const BlockCopy> copies);

  tandem::cuda::Element element() const { return element_; }

 private:
  at::Tensor Multiply(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor Norm(Residual& residual, const at::Tensor& weight) const;
  at::Tensor Attend(int64_t index, const CudaLayer& layer, const at::Tensor& qkv,
                    const DeviceInputs& inputs) const;
  void AttendPaged(const DeviceRange& range, const DeviceInputs& inputs, const at::Tensor& keys,
                   const at::Tensor& values, const at::Tensor& queries, at::Tensor& out) const;
  void AttendFlash(const DeviceRange& range, const at::Tensor& keys, const at::Tensor& values,
                   const at::Tensor& queries, at::Tensor& out) const;

  const ModelConfig config_;
  const at::ScalarType type_;
  const tandem::cuda::Element element_;
  const bool own_products_;
  at::Tensor cache_;        // [2 L, blocks, Hkv, 16, D]: keys and values of each layer
  at::Tensor frequencies_;  // [D / 2] fp32
};

}  // namespace tandem::rollout
