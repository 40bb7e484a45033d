// CudaWeights: one version of the model on a CUDA device. Includes LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/staged_weights.h"

namespace tandem::rollout {

struct CudaLinear {
  at::Tensor weight;  // [O, I], the engine's dtype
  at::Tensor bias;    // [O] fp32, or undefined
};

// Norms are fp32.
struct CudaLayer {
  at::Tensor input_norm, post_norm;  // [E]
  at::Tensor q_norm, k_norm;         // [D], Qwen3 only
  CudaLinear qkv;                    // E -> (H + 2 Hkv) D
  CudaLinear o;                      // H D -> E
  CudaLinear gate_up;                // E -> I gates, then I ups
  CudaLinear down;                   // I -> E
};

struct CudaWeights : StagedWeights {
  // Identifies the memory that the tensors lie in. They never move while this lives, and the number
  // is unique in the process. A graph that reads this memory stays valid for weights uploaded to it
  // later.
  const uint64_t place = NextPlace();

  at::Tensor embedding;  // [V, E]
  at::Tensor head;       // [V, E]; the embedding when they are tied
  std::vector<CudaLayer> layers;
  at::Tensor final_norm;  // [E]

  // Receive buffers for buckets; undefined before the first push. They belong to this memory for
  // good, because an abandoned broadcast may still write to them for a moment.
  std::array<at::Tensor, ArrivingWeights::kBuffers> buffers;

  int64_t layer_bytes() const;  // of the linear layers except the head

 private:
  static uint64_t NextPlace();
};

// Views of `weights`, one for each tensor of ModelTensors, in that order and of its shape. They are
// contiguous, and of `dtype`, except norms and biases, which are fp32. Allocates missing tensors on
// the current stream. Throws c10::Error.
std::vector<at::Tensor> TensorPlaces(const ModelConfig& config, DType dtype, CudaWeights& weights);

// Copies `tensors` (which CheckModelTensors accepts) to the device, into `spare`'s memory unless it
// is null, on a stream of its own, and waits for it. Throws c10::Error.
std::unique_ptr<CudaWeights> UploadWeights(const ModelConfig& config,
                                           const std::vector<HostTensor>& tensors, DType dtype,
                                           std::unique_ptr<CudaWeights> spare);

}  // namespace tandem::rollout
