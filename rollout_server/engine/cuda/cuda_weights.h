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
  // Of the memory the tensors lie in: they never move while this lives, and no other weights of the
  // process have had the number. A graph that reads them is good for what is installed here later
  // too.
  const uint64_t place = NextPlace();

  at::Tensor embedding;  // [V, E]
  at::Tensor head;       // [V, E]; the embedding when they are tied
  std::vector<CudaLayer> layers;
  at::Tensor final_norm;  // [E]

  // Bytes of buckets that arrive for this place; undefined before the first. They stay with it: a
  // broadcast that was given up may still write there for a moment, where nobody else may be.
  std::array<at::Tensor, ArrivingWeights::kRooms> rooms;

  int64_t layer_bytes() const;  // of the linear layers but the head

 private:
  static uint64_t NextPlace();
};

// Where each tensor of ModelTensors lies in `weights`, in that order and of its shape: views, of
// `dtype` or, norms and biases, fp32, each contiguous. Allocates on the current stream what is not
// there yet. Throws c10::Error.
std::vector<at::Tensor> TensorPlaces(const ModelConfig& config, DType dtype, CudaWeights& weights);

// `tensors`: of PackModelWeights' check. Copies them, into `spare`'s memory where it is not null,
// on a stream of its own, and waits for it. Throws c10::Error.
std::unique_ptr<CudaWeights> UploadWeights(const ModelConfig& config,
                                           const std::vector<HostTensor>& tensors, DType dtype,
                                           std::unique_ptr<CudaWeights> spare);

}  // namespace tandem::rollout
