#include "rollout_server/engine/cuda/cuda_runner.h"

namespace tandem::rollout {

absl::StatusOr<std::unique_ptr<TokenRunner>> MakeCudaRunner(const ModelConfig&,
                                                            const CudaRunnerOptions&) {
  return absl::FailedPreconditionError(
      "engine.device is cuda, and this build has no CUDA: build the cuda preset (docs/cuda.md)");
}

}  // namespace tandem::rollout
