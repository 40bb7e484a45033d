#include <algorithm>
#include <string_view>
#include <thread>

#include "common/base/status_macros.h"
#include "common/model/numerics.h"
#include "common/options/options.h"
#include "rollout_server/engine/engine_options.h"

namespace tandem::rollout {

std::string_view InFlightName(InFlight policy) {
  constexpr std::string_view kNames[] = {"keep", "recompute", "abort", "drain"};
  return kNames[static_cast<size_t>(policy)];
}

std::string_view LoraPlaceName(LoraPlace place) {
  return place == LoraPlace::kMerged ? "merged" : "unmerged";
}

int EngineOptions::compute_threads() const {
  if (num_threads > 0) return static_cast<int>(num_threads);
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

absl::Status CheckAdapters(const EngineOptions& options) {
  const bool unmerged = options.lora == LoraPlace::kUnmerged;
  if (!unmerged && options.lora_modules.empty()) return absl::OkStatus();
  const char* const what = unmerged ? "engine.lora unmerged" : "engine.lora_modules";
  if (options.device == Device::kCuda) {
    return Unimplemented(what, " with device cuda: use engine.lora merged, or device cpu");
  }
  if (unmerged && options.numerics == Numerics::kExact) {
    return InvalidArgument(
        "engine.lora unmerged with numerics exact: the trainer's exact forward has adapters "
        "merged; "
        "use engine.lora merged");
  }
  if (options.faults.weights()) {
    return InvalidArgument(what, " with drift.inject faults of weights: use engine.lora merged");
  }
  return absl::OkStatus();
}

void BindOptions(OptionBinder& binder, EngineOptions& options) {
  binder.Choice<Device>("device", &options.device, {{"cpu", Device::kCpu}, {"cuda", Device::kCuda}},
                        "where the forward runs; cuda needs a build of the cuda preset and a GPU");
  binder.Flag("cuda_graphs", &options.cuda_graphs,
              "on a GPU: replay steps of decodes alone as CUDA graphs; off to look for a fault");
  binder.Choice<ComputeDType>("dtype", &options.dtype,
                              {{"fp32", ComputeDType::kFp32}, {"bf16", ComputeDType::kBf16}},
                              "compute type of weights, linear layers and KV cache");
  BindOptions(binder, options.quantised);
  BindNumerics(
      binder, &options.numerics,
      "what the log-probs depend on: invariant and exact promise weights, prompt, sampling, seed "
      "and index alone, and refuse to start where the kernels do not keep it");
  binder.Choice<LoraPlace>(
      "lora", &options.lora, {{"merged", LoraPlace::kMerged}, {"unmerged", LoraPlace::kUnmerged}},
      "where a pushed adapter is applied: merged into the weights as it arrives, or beside them in "
      "every step (docs/lora.md)");
  binder.TextMap("lora_modules", &options.lora_modules,
                 "adapters that a request may choose, by name: PEFT directories");
  binder.Integer("kv_capacity_tokens", &options.kv_capacity_tokens, {.min = 0, .max = 1 << 28},
                 "tokens",
                 "size of the KV cache, at least 16; 0: on a GPU what its memory leaves beside "
                 "weights and steps, on the CPU 32768");
  binder.Integer("max_batch_sequences", &options.max_batch_sequences, {.min = 1, .max = 4096},
                 "sequences", "sequences of one decode step");
  binder.Integer("max_step_tokens", &options.max_step_tokens, {.min = 1, .max = 1 << 20}, "tokens",
                 "decode tokens and prompt chunks of one step; at least max_batch_sequences");
  binder.Flag(
      "prefix_cache", &options.prefix_cache,
      "find KV of full blocks again that begin with the same tokens under the same weights");
  binder.Choice<InFlight>(
      "in_flight", &options.in_flight,
      {{"keep", InFlight::kKeep},
       {"recompute", InFlight::kRecompute},
       {"abort", InFlight::kAbort},
       {"drain", InFlight::kDrain}},
      "groups that run when new weights come: keep their KV, recompute it, end with "
      "ABORTED, or let them end first");
  binder.Integer("num_threads", &options.num_threads, {.min = 0, .max = 1024}, "threads",
                 "compute threads; 0 takes the machine's cores");
}

}  // namespace tandem::rollout
