// ModelWeights: one version of the model, packed for the kernels. Immutable once made; Engine swaps
// pointers to it. Made from tensors in ModelTensors order.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_MODEL_WEIGHTS_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_MODEL_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"
#include "common/tensor/linear.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/engine.h"

namespace tandem::rollout {

struct LayerWeights {
  at::Tensor input_norm, post_norm;  // [E] fp32
  at::Tensor q_norm, k_norm;         // [D] fp32, Qwen3 only
  PackedLinear qkv;                  // E -> (H + 2 Hkv) D
  PackedLinear o;                    // H D -> E
  PackedLinear gate_up;              // E -> 2 I
  PackedLinear down;                 // I -> E
};

struct ModelWeights : StagedWeights {
  at::Tensor embedding;  // [V, E] in the compute dtype
  std::vector<LayerWeights> layers;
  at::Tensor final_norm;  // [E] fp32
  PackedLinear head;      // E -> V, always multiplied in fp32: bf16 logits would be a lattice
};

// Casts (nearest even) to `dtype` and packs. `expected_rows`: rows of a typical decode step.
//   INVALID_ARGUMENT  a tensor has another name or shape than ModelTensors says
//   INTERNAL          LibTorch failed
absl::StatusOr<std::unique_ptr<ModelWeights>> PackModelWeights(const ModelConfig& config,
                                                               const std::vector<HostTensor>& tensors,
                                                               ComputeDType dtype,
                                                               int64_t expected_rows);

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_MODEL_WEIGHTS_H_
