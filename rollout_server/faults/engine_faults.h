// EngineFaults: fault parameters that make this engine wrong in a known way and by a known amount,
// so that the drift lab can be tested against the truth. Section `drift.inject` of a run file;
// every fault is off by default. FaultHooks (fault_hooks.h) acts on them.
//
// A fault does not change what the engine claims: versions, digests, settings, retained mass and
// prefix flags are those of a healthy engine, as with a real bug. Active faults are never hidden:
// DescribeFaults names them in the log, in GetInfo and on /metrics. Scores are computed with the
// claimed weights, transforms and arithmetic, unless ScoreOptions::as_served. docs/calibration.md
// gives each parameter's real-life counterpart and its true effect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/matrix/weight_format.h"
#include "common/model/forward_arithmetic.h"
#include "common/model/model_config.h"
#include "common/model/quantisation_plan.h"
#include "common/options/options.h"

namespace tandem::rollout {

// Which distribution is recorded, when the one sampled from is not the one claimed.
enum class FaultRecord { kDrawn, kClaimed };

struct EngineFaults {
  // Undisclosed transforms, on top of those of the request; greedy requests are not changed.
  double temperature = 1;  // times the claimed one
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  FaultRecord record = FaultRecord::kDrawn;

  // Gaussian noise on every logit, a function of (seed of the group, completion, position, id)
  // alone.
  double logit_noise = 0;             // standard deviation
  double heavy_tail_probability = 0;  // that a token's noise is multiplied
  double heavy_tail_factor = 1;       // by this

  // Arithmetic of the forward (common/model/forward_arithmetic.h).
  int64_t body_bits = kFp32SignificandBits;
  int64_t head_bits = kFp32SignificandBits;
  int64_t kv_bits = kFp32SignificandBits;
  int64_t rotary_bits = kFp32SignificandBits;
  int64_t kv_quant_bits = 0;  // 0: off
  int64_t kv_quant_from = 0;  // position

  // Number format of the weights, with activations as in QuantisationOptions.
  WeightScheme weight_format = WeightScheme::kWide;  // kWide: as the engine says

  // Weights other than the live version's.
  int64_t stale_versions = 0;  // serve the weights of this many installs before
  double weight_interpolation =
      0;                           // a: serve theta + a (theta' - theta), theta' the version before
  std::string tensor;              // the one that the two above act on; empty: all
  std::string undelivered_tensor;  // keeps its first value for ever
  double stale_prefix_fraction = 0;  // share of groups whose prompt's KV is of the weights before

  // Records that differ from what was sampled.
  double shift_fraction = 0;   // share of completions with the log-probs of the token before
  bool synthetic_end = false;  // record log-prob 0 for an end token
  int64_t wrong_bos = -1;      // compute the first prompt token as this id; -1: off
  bool retokenise = false;     // return the ids of the text, encoded again

  ForwardArithmetic arithmetic() const;
  bool transforms() const { return temperature != 1 || top_k > 0 || top_p < 1 || min_p > 0; }
  // Does a fault act on weights, so that the engine needs other versions than the claimed one?
  bool weights() const {
    return stale_versions > 0 || weight_interpolation != 0 || !undelivered_tensor.empty() ||
           stale_prefix_fraction > 0 || weight_format != WeightScheme::kWide;
  }

  friend bool operator==(const EngineFaults&, const EngineFaults&) = default;
};

// Binds the fields by name, range and help to the binder's current section.
void BindOptions(OptionBinder& binder, EngineFaults& faults);

// Every active fault with its strength, for people: "temperature 0.9 (record claimed)". Empty on a
// healthy engine.
std::vector<std::string> DescribeFaults(const EngineFaults& faults);

// The formats that weights are served in, where the engine claims `claimed`.
//   INVALID_ARGUMENT  the model does not take weight_format
absl::StatusOr<QuantisationPlan> ServedPlan(const EngineFaults& faults, const ModelConfig& config,
                                            const QuantisationPlan& claimed);

// Checks what no single option can tell.
//   INVALID_ARGUMENT  a tensor that the model does not have; a tensor that no fault acts on;
//                     wrong_bos outside the vocabulary; ServedPlan
absl::Status CheckFaults(const EngineFaults& faults, const ModelConfig& config);

}  // namespace tandem::rollout
