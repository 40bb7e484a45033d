// ModelRunner: the engine's own forward over a KV cache in blocks (arrow 2). It owns the cache; weights
// come with each call, so that a swap between two steps is a pointer.
//
// The residual stream, norms, rotary, softmax and logits are fp32; with ComputeDType::kBf16 the inputs of
// linear layers, the weights and the cache are bf16. Use from the engine thread only. May throw
// c10::Error (the engine wraps it).
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_MODEL_RUNNER_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_MODEL_RUNNER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/engine/model_weights.h"
#include "rollout_server/engine/scheduler.h"

namespace tandem::rollout {

// One token to compute. Its KV goes to `position` of the sequence with that block table; it attends to
// positions 0..position.
struct TokenInput {
  int32_t token_id = 0;
  int32_t position = 0;
  const std::vector<BlockId>* blocks = nullptr;
};

class ModelRunner {
 public:
  // Allocates the cache: num_blocks blocks of KvBlockPool::kBlockTokens tokens.
  ModelRunner(const ModelConfig& config, ComputeDType dtype, int64_t num_blocks);

  // Computes `inputs` [N] and returns the logits [R, V] fp32 of the rows named by `logits_rows` [R].
  // Tokens of one sequence may come in one call, in order of position.
  at::Tensor Run(const ModelWeights& weights, const std::vector<TokenInput>& inputs,
                 const std::vector<int64_t>& logits_rows);

  // Copies whole blocks, all layers.
  void CopyBlocks(const std::vector<BlockCopy>& copies);

  int64_t cache_bytes() const { return 2 * keys_.nbytes(); }

 private:
  template <typename Kv>
  void WriteCache(int64_t layer, const LayerWeights& weights, const std::vector<TokenInput>& inputs,
                  at::Tensor& qkv);
  template <typename Kv>
  void Attend(int64_t layer, const std::vector<TokenInput>& inputs, const at::Tensor& qkv,
              at::Tensor& out);
  void FillRotary(const std::vector<TokenInput>& inputs);

  const ModelConfig config_;
  const ComputeDType dtype_;
  const int64_t padded_d_;
  const std::vector<float> inverse_frequencies_;  // [D / 2]
  at::Tensor keys_;    // [L, N, Hkv, D, 16] fp32 or bf16
  at::Tensor values_;  // [L, N, Hkv, 16, padded D]
  at::Tensor cosines_, sines_;  // [tokens of the step, D / 2]
};

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_MODEL_RUNNER_H_
