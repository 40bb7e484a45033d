// EngineOptions: how an engine is sized and what it promises, section `server.engine` of a run
// file; and InFlight, its policy for running groups when weights are installed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/model/forward_kernels.h"
#include "common/model/numerics.h"
#include "common/model/quantisation_plan.h"
#include "common/options/options.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/faults/engine_faults.h"

namespace tandem::rollout {

// What becomes of groups that run when new weights are installed.
enum class InFlight {
  kKeep,       // they go on with the KV that they have, and sample under the new weights
  kRecompute,  // they go on, with KV computed anew under the new weights
  kAbort,      // they end with ABORTED
  kDrain,      // the install waits until they have ended; nothing is admitted meanwhile
};

std::string_view InFlightName(InFlight policy);  // "keep", ...

// Where the adapter (LoRA) that a trainer pushes is applied.
enum class LoraPlace {
  kMerged,    // in the weights, as it arrives: what is served is a model without adapters
  kUnmerged,  // beside the weights, in every step
};
std::string_view LoraPlaceName(LoraPlace place);  // "merged", "unmerged"

struct EngineOptions {
  Device device = Device::kCpu;
  bool cuda_graphs = true;              // for decode steps on a GPU
  Numerics numerics = Numerics::kFast;  // the other two are promises, checked at the start
  ComputeDType dtype = ComputeDType::kBf16;
  QuantisationOptions quantised;  // weights and KV, from the values in `dtype`
  LoraPlace lora = LoraPlace::kMerged;
  // Adapters beside the weights that a request may choose, by name: their PEFT directories.
  std::vector<std::pair<std::string, std::string>> lora_modules;
  int64_t kv_capacity_tokens = 0;  // 0: on a CUDA device what memory leaves, else 32768
  // Hold memory for a second version from the start on, so that no weight push fails for lack of
  // it.
  bool reserve_for_push = false;
  int64_t max_batch_sequences = 64;  // sequences in one decode step
  int64_t max_step_tokens = 512;     // decode tokens and prompt chunks of one step
  bool prefix_cache = true;          // full blocks of KV are found again by later prompts
  InFlight in_flight = InFlight::kKeep;
  int64_t num_threads = 0;  // 0: the cores of the machine
  EngineFaults faults;      // none; has its own BindOptions (engine_faults.h)

  DType weight_dtype() const { return dtype == ComputeDType::kBf16 ? DType::kBF16 : DType::kF32; }
  int64_t num_blocks() const { return kv_capacity_tokens / kKvBlockTokens; }  // of the KV cache
  int compute_threads() const;  // num_threads, or the cores
};
void BindOptions(OptionBinder& binder, EngineOptions& options);

// Whether adapters can be applied beside the weights under the other options.
//   UNIMPLEMENTED     on a CUDA device
//   INVALID_ARGUMENT  lora unmerged with numerics exact; faults of weights
absl::Status CheckAdapters(const EngineOptions& options);

}  // namespace tandem::rollout
