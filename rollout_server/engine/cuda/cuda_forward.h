// CudaForward: the model's layers and its KV cache on a CUDA device. Inputs of a step are device
// tensors. It never waits and depends on no host value but sizes, so that a call can be captured as
// a CUDA graph. Everything runs on the current stream. Includes LibTorch.
//
// Attention is paged (Kwon et al., SOSP 2023): a row attends over the blocks in its sequence's
// block table. Long runs of prompt tokens instead gather their KV and use flash attention (Dao,
// ICLR 2024), which is faster but whose bits depend on the batch composition.
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

// Neighbouring rows that use the same attention kernel, as RowRange (step_inputs.h).
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
  // Allocates the cache of num_blocks blocks. With `own_products` linear layers use RunMatmul,
  // whose bits do not depend on the batch composition; else cuBLAS.
  CudaForward(const ModelConfig& config, ComputeDType dtype, int64_t num_blocks, bool own_products);

  // The residual stream, and the output of the last layer, which is not yet added to it.
  struct Residual {
    at::Tensor hidden, delta;  // [N, E] fp32
    const at::Tensor* bias = nullptr;
  };
  Residual Layers(const CudaWeights& weights, const DeviceInputs& inputs) const;

  // Logits [R, V] fp32 of `rows` [R] int64 of the residual stream. Each row may be requested once.
  at::Tensor Logits(const CudaWeights& weights, Residual& residual, const at::Tensor& rows) const;

  // Copies blocks of all layers, with one kernel for each round (CopyRounds).
  void CopyBlocks(std::span<const BlockCopy> copies);

  tandem::cuda::Element element() const { return element_; }

 private:
  at::Tensor Multiply(const at::Tensor& x, const at::Tensor& weight) const;
  void Norm(Residual& residual, const at::Tensor& weight, at::Tensor& normed,
            const at::Tensor* chosen = nullptr, void* rest = nullptr) const;
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
