// How the two sides of a run compute: device, dtype, and Numerics, what the run guarantees about
// their arithmetic (docs/rollouts.md, Numerics).
#pragma once

#include <string_view>

namespace tandem {

enum class Numerics {
  kFast,       // each side uses its fastest kernels; their mismatch is measured
  kInvariant,  // batch-invariant: engine results depend on sequence and weights alone
  kExact,      // also, the trainer's forward gives the engine's bits at equal weights
};

constexpr std::string_view NumericsName(Numerics numerics) {
  constexpr std::string_view kNames[] = {"fast", "invariant", "exact"};
  return kNames[static_cast<size_t>(numerics)];
}

// Binder is OptionBinder (common/options/options.h); a template keeps that header out of this one.
template <typename Binder>
void BindNumerics(Binder& binder, Numerics* field, std::string_view help) {
  binder.template Choice<Numerics>(
      "numerics", field,
      {{"fast", Numerics::kFast}, {"invariant", Numerics::kInvariant}, {"exact", Numerics::kExact}},
      help);
}

// The kind of device that one side of the run computes on. kCuda is a GPU that this process sees
// (CUDA_VISIBLE_DEVICES), in builds of the cuda preset. An engine uses the first one; a rank of the
// trainer uses the one with its local rank.
enum class Device { kCpu, kCuda };

// The dtype in which linear layers compute, in the engine (engine.h) and in the policy (policy.h).
enum class ComputeDType { kFp32, kBf16 };

}  // namespace tandem
