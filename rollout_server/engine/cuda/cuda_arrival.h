// CudaArrival: ArrivingWeights in the memory of a CUDA device. Slices are copied from the receive
// buffers to their places by the device, and a kernel computes the digests there
// (common/cuda/kernels.h). All of it runs on the stream of uploads, beside the engine's steps.
// Includes LibTorch.
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
  // Uses `spare`'s memory unless it is null. When this is destroyed before Take, `give_back` gets
  // the weights. Throws c10::Error.
  using GiveBack = std::function<void(std::unique_ptr<StagedWeights>)>;
  CudaArrival(const ModelConfig& config, DType dtype, std::unique_ptr<CudaWeights> spare,
              GiveBack give_back);
  ~CudaArrival() override;

  absl::StatusOr<std::span<std::byte>> Buffer(size_t index, int64_t num_bytes) override
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
