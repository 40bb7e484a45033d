#include "rollout_server/engine/cuda/cuda_runner.h"

namespace tandem::rollout {

namespace {

absl::Status NoCuda() {
  return absl::FailedPreconditionError(
      "engine.device is cuda, and this build has no CUDA: build the cuda preset "
      "(docs/dev/cuda.md)");
}

}  // namespace

absl::StatusOr<cuda::MemoryPlan> PlanCudaMemory(const ModelConfig&, const EngineOptions&) {
  return NoCuda();
}

absl::StatusOr<std::unique_ptr<TokenRunner>> MakeCudaRunner(const ModelConfig&,
                                                            const EngineOptions&) {
  return NoCuda();
}

}  // namespace tandem::rollout
