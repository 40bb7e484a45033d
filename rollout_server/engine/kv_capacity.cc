#include "rollout_server/engine/kv_capacity.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/model/quantisation_plan.h"
#include "common/process/memory.h"
#include "rollout_server/engine/cuda/cuda_runner.h"
#include "rollout_server/engine/forward/model_runner.h"
#include "rollout_server/engine/forward/model_weights.h"
#include "rollout_server/engine/schedule/kv_block_pool.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kTokensOnTheCpu = 32768;

absl::StatusOr<int64_t> OnDevice(const ModelConfig& config, const EngineOptions& options) {
  if (!(options.faults == EngineFaults{})) {
    return Unimplemented("injected faults on a CUDA device: use device cpu");
  }
  TANDEM_ASSIGN_OR_RETURN(const cuda::MemoryPlan plan, PlanCudaMemory(config, options));
  log::Info("memory of the CUDA device", {{"plan", plan.Text()}});
  return plan.num_blocks * KvBlockPool::kBlockTokens;
}

std::string Mib(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

absl::StatusOr<int64_t> KvCapacityTokens(const ModelConfig& config, const EngineOptions& options) {
  const int64_t asked = options.kv_capacity_tokens;
  if (asked != 0 && asked < KvBlockPool::kBlockTokens) {
    return InvalidArgument("engine.kv_capacity_tokens is ", asked,
                           ", want 0 (see its help) or at least ", KvBlockPool::kBlockTokens);
  }
  if (options.device == Device::kCuda) return OnDevice(config, options);
  return asked == 0 ? kTokensOnTheCpu : asked;
}

absl::Status CheckKvMemory(const KvMemory& wanted, std::optional<int64_t> available) {
  const int64_t others = wanted.weight_bytes + wanted.push_bytes;
  if (!available || wanted.cache_bytes + others <= *available) return absl::OkStatus();
  std::vector<std::string> parts;
  if (wanted.cache_bytes > 0) {
    parts.push_back(absl::StrCat("a KV cache of ", wanted.capacity_tokens, " tokens takes ",
                                 Mib(wanted.cache_bytes)));
  }
  if (wanted.weight_bytes > 0) parts.push_back("the weights " + Mib(wanted.weight_bytes));
  if (wanted.push_bytes > 0) parts.push_back("a push of weights " + Mib(wanted.push_bytes));
  const std::string need = absl::StrCat(absl::StrJoin(parts, ", "),
                                        ", and this process can still take ", Mib(*available));
  // A twentieth stays for everything else.
  const int64_t left = *available / 20 * 19 - others;
  if (wanted.cache_bytes > 0 && left > 0) {
    const double fits = static_cast<double>(left) / static_cast<double>(wanted.cache_bytes) *
                        static_cast<double>(wanted.capacity_tokens);
    const int64_t tokens =
        static_cast<int64_t>(fits) / KvBlockPool::kBlockTokens * KvBlockPool::kBlockTokens;
    if (tokens > 0) {
      return ResourceExhausted(need, ": lower engine.kv_capacity_tokens to at most ", tokens);
    }
  }
  return ResourceExhausted(need, ": the model needs a machine or a memory limit that is larger");
}

absl::Status CheckHostMemory(const EngineOptions& options, const ModelConfig& config,
                             const TensorBytes& tensors) {
  KvMemory wanted;
  if (options.reserve_for_push) wanted.push_bytes = tensors.all - tensors.copies;
  if (options.device == Device::kCpu) {
    wanted.capacity_tokens = options.kv_capacity_tokens;
    TANDEM_ASSIGN_OR_RETURN(const QuantisationPlan plan,
                            MakeQuantisationPlan(config, options.quantised));
    wanted.cache_bytes =
        ModelRunner::CacheBytes(config, options.dtype, plan.kv, options.num_blocks());
    wanted.weight_bytes =
        plan.quantises() ? PackedModelBytes(config, options.weight_dtype(), plan) : tensors.all;
    if (options.reserve_for_push) wanted.push_bytes += wanted.weight_bytes;
  }
  return CheckKvMemory(wanted, AvailableMemoryBytes());
}

}  // namespace tandem::rollout
