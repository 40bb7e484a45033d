#include "rollout_server/engine/kv_capacity.h"

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "rollout_server/engine/cuda/cuda_runner.h"
#include "rollout_server/engine/schedule/kv_block_pool.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kTokensOnTheCpu = 32768;

absl::StatusOr<int64_t> OnDevice(const ModelConfig& config, const EngineOptions& options) {
  if (!(options.faults == EngineFaults{})) {
    return absl::UnimplementedError("injected faults on a CUDA device: use device cpu");
  }
  TANDEM_ASSIGN_OR_RETURN(
      const cuda::MemoryPlan plan,
      PlanCudaMemory(config,
                     {.dtype = options.dtype == ComputeDType::kBf16 ? DType::kBF16 : DType::kF32,
                      .weight_versions = options.reserve_for_push ? 2 : 1,
                      .graphs = options.cuda_graphs,
                      .max_batch_sequences = options.max_batch_sequences,
                      .max_step_tokens = options.max_step_tokens,
                      .kv_capacity_tokens = options.kv_capacity_tokens}));
  log::Info("memory of the CUDA device", {{"plan", plan.Text()}});
  return plan.num_blocks * KvBlockPool::kBlockTokens;
}

}  // namespace

absl::StatusOr<int64_t> KvCapacityTokens(const ModelConfig& config, const EngineOptions& options) {
  const int64_t asked = options.kv_capacity_tokens;
  if (asked != 0 && asked < KvBlockPool::kBlockTokens) {
    return absl::InvalidArgumentError(absl::StrCat("engine.kv_capacity_tokens is ", asked,
                                                   ", want 0 (see its help) or at least ",
                                                   KvBlockPool::kBlockTokens));
  }
  if (options.device == Device::kCuda) return OnDevice(config, options);
  return asked == 0 ? kTokensOnTheCpu : asked;
}

}  // namespace tandem::rollout
