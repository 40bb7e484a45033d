// AdapterPush: what goes with the tensors of an adapter that is pushed in place of merged weights, and
// the proof that a server applied all of it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/lora/lora_merge.h"
#include "trainer/weight_push/weight_cast.h"

namespace tandem::trainer {

struct AdapterPush {
  int64_t rank = 0;
  float scaling = 1;        // s
  bool dither = false;      // how a bf16 server rounds merged weights
  std::string base_digest;  // CombinedDigest of the base in the server's dtype

  struct Module {
    std::string weight;         // of the model
    double squared_change = 0;  // ||s B A||^2 by the trainer's own numbers
  };
  std::vector<Module> modules;
  int64_t num_elements = 0;  // of the model
};

// What a server reports that it did to one weight.
struct AppliedModule {
  std::string weight;
  LoraEffect effect;
};

// OK if the server changed exactly the modules of the push, each as much as the trainer's adapter
// changes it (||s B A|| within a hundredth).
//   DATA_LOSS  names those that it did not bind or changed otherwise: the adapter is not what it serves
absl::Status CheckApplied(const AdapterPush& push, const std::vector<AppliedModule>& applied);

// The same as numbers of a push: of the whole change from the base, not since the push before.
// update_norm is 0: the server does not know it.
CastNumbers NumbersOf(const AdapterPush& push, const std::vector<AppliedModule>& applied);

}  // namespace tandem::trainer
