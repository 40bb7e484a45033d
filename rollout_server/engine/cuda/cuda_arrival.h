// CudaArrival: ArrivingWeights on a CUDA device: rooms and places lie in its memory, slices go from
// one to the other by copies of the device, and digests are made there by a kernel
// (common/cuda/kernels.h). On the stream of uploads, beside the engine's steps. Includes
// LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/model/model_config.h"
#include "rollout_server/engine/cuda/cuda_weights.h"
#include "rollout_server/engine/forward/staged_weights.h"

namespace tandem::rollout {

class CudaArrival : public ArrivingWeights {
 public:
  // In `spare`'s memory where it is not null, else in fresh memory. `give_back` gets the weights
  // that nobody took, when this ends. Throws c10::Error.
  using GiveBack = std::function<void(std::unique_ptr<StagedWeights>)>;
  CudaArrival(const ModelConfig& config, DType dtype, std::unique_ptr<CudaWeights> spare,
              GiveBack give_back);
  ~CudaArrival() override;

  absl::StatusOr<std::span<std::byte>> Room(size_t place, int64_t num_bytes) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Write(size_t index, int64_t offset, std::span<const std::byte> bytes) override
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::vector<std::string>> Seal() override ABSL_LOCKS_EXCLUDED(mu_);
  std::unique_ptr<StagedWeights> Take() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const DType dtype_;
  const GiveBack give_back_;

  Mutex mu_;
  std::unique_ptr<CudaWeights> weights_ ABSL_GUARDED_BY(mu_);  // null: taken
  std::vector<at::Tensor> places_ ABSL_GUARDED_BY(mu_);        // of each tensor, in weights_
  bool sealed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tandem::rollout
