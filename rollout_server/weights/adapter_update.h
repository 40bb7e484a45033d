// AdapterUpdate: a weight push that brings an adapter (LoRA) in place of weights. It is merged here,
// into the base that the server loaded, so that what is served is what a merged checkpoint has, bit
// for bit; or it stays beside the weights, if the engine does so. Used by WeightReceiver.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/lora/lora_merge.h"
#include "common/lora/lora_shape.h"
#include "common/weights/digest.h"
#include "common/weights/host_tensor.h"
#include "rollout_server/engine/forward/adapter_weights.h"
#include "rollout_server/weights/staged_tensor.h"

namespace tandem::rollout {

// What comes with the tensors of an adapter.
struct AdapterHeader {
  int64_t rank = 0;
  float scaling = 1;    // s
  bool dither = false;  // how a bf16 server rounds merged weights
  std::string
      base_digest;  // CombinedDigest of the weights that the adapter is of, in the server's dtype
};

// What the adapter did to one weight of the model.
struct ModuleEffect {
  std::string weight;
  LoraEffect effect;
};

// A model with an adapter merged in.
struct MergedAdapter {
  std::vector<HostTensor> tensors;    // of the model, in its order
  std::vector<ModuleEffect> effects;  // of each module of the adapter
  DigestMap digests;                  // of `tensors`
};

// An adapter that stays beside the model.
struct UnmergedAdapter {
  AdapterFactors factors;             // views of what arrived
  std::vector<ModuleEffect> effects;  // of each module of the adapter: exact, as nothing is rounded
  DigestMap digests;  // of the base; of a weight with an adapter, of the digests of W, A and B
};

class AdapterUpdate {
 public:
  // `manifest`: the adapter's tensors, LoraTensors order. `model`: the served ones.
  //   INVALID_ARGUMENT  errors of ModulesOf; a scaling that is not a positive number
  static absl::StatusOr<std::unique_ptr<AdapterUpdate>> Create(
      const AdapterHeader& header, std::vector<TensorSpec> manifest,
      const std::vector<TensorSpec>& model);

  const AdapterHeader& header() const { return header_; }
  const std::vector<TensorSpec>& manifest() const { return manifest_; }
  const std::vector<LoraModule>& modules() const { return modules_; }
  size_t place(size_t module) const { return places_[module]; }  // in the model's order

  // Merges A and B, as they arrived in the order of the manifest, into `base`, the model's tensors in
  // its order and dtype; others stay as they are. The weight of module m gets memory[m], or where that
  // is null or has another owner, memory that is left there. `base_digests`: of `base`. Parallel.
  MergedAdapter Merge(const std::vector<StagedTensor>& arrived, const std::vector<HostTensor>& base,
                      const DigestMap& base_digests,
                      std::vector<std::shared_ptr<TensorMemory>>& memory) const;

  // The adapter as it arrived, to be applied beside the weights.
  UnmergedAdapter Unmerged(const std::vector<StagedTensor>& arrived,
                           const DigestMap& base_digests) const;

 private:
  AdapterHeader header_;
  std::vector<TensorSpec> manifest_;
  std::vector<LoraModule> modules_;
  std::vector<size_t> places_;
};

}  // namespace tandem::rollout
