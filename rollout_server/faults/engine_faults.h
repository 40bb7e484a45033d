// EngineFaults: dials that make this engine wrong in a known way and by a known amount, so that the
// drift lab can be held against the truth. Section `drift.inject` of a run file; every dial is off
// by default.
//
// A fault acts behind the claims: versions, digests, settings, kept mass and prefix flags go on
// saying what a healthy engine would say, as with a real bug. It is loud all the same:
// DescribeFaults names every active one in the log, in GetInfo and on /metrics. Score stays honest,
// unless it is asked for what is served: it computes with the weights, transforms and arithmetic
// that are claimed. docs/calibration.md gives each dial's real-life counterpart and its truth.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/forward_arithmetic.h"
#include "common/model/model_config.h"
#include "common/options/options.h"

namespace tandem::rollout {

// Which distribution the record is of, when the one drawn from is not the one claimed.
enum class FaultRecord { kDrawn, kClaimed };

struct EngineFaults {
  // Undisclosed transforms, over those a call asks for; greedy calls are not touched.
  double temperature = 1;  // times the claimed one
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  FaultRecord record = FaultRecord::kDrawn;

  // Gaussian noise on every logit, a function of (seed of the group, completion, position, id)
  // alone.
  double logit_noise = 0;             // its standard deviation
  double heavy_tail_probability = 0;  // of a token
  double heavy_tail_factor = 1;       // on that token's noise

  // Arithmetic of the forward (forward_arithmetic.h).
  int64_t body_bits = kFp32SignificandBits;
  int64_t head_bits = kFp32SignificandBits;
  int64_t kv_bits = kFp32SignificandBits;
  int64_t rotary_bits = kFp32SignificandBits;
  int64_t kv_quant_bits = 0;  // 0: off
  int64_t kv_quant_from = 0;  // position

  // Weights other than the live version's.
  int64_t stale_versions = 0;        // those of so many installs before
  double weight_interpolation = 0;   // theta + a (theta' - theta), theta' the version before
  std::string tensor;                // the one the two dials above act on; empty: all
  std::string undelivered_tensor;    // keeps its first value for ever
  double stale_prefix_fraction = 0;  // groups whose prompt's KV is of the weights before

  // Records other than what was drawn.
  double shift_fraction = 0;   // completions whose log-probs are those of the token before
  bool synthetic_end = false;  // an end token's log-prob is 0
  int64_t wrong_bos = -1;      // the id in whose place the first prompt token is computed; -1: off
  bool retokenise = false;     // ids are those of the text, encoded again

  ForwardArithmetic arithmetic() const;
  bool transforms() const { return temperature != 1 || top_k > 0 || top_p < 1 || min_p > 0; }
  // The engine needs weights besides the claimed ones.
  bool weights() const {
    return stale_versions > 0 || weight_interpolation != 0 || !undelivered_tensor.empty() ||
           stale_prefix_fraction > 0;
  }

  friend bool operator==(const EngineFaults&, const EngineFaults&) = default;
};

// Names, ranges and help; no section of its own.
void BindOptions(OptionBinder& binder, EngineFaults& faults);

// Every active fault with its strength, for people: "temperature 0.9 (record claimed)". Empty:
// healthy.
std::vector<std::string> DescribeFaults(const EngineFaults& faults);

// What no single knob can tell.
//   INVALID_ARGUMENT  a tensor the model has not; a tensor without a dial that acts on it;
//   wrong_bos outside
//                     the vocabulary
absl::Status CheckFaults(const EngineFaults& faults, const ModelConfig& config);

}  // namespace tandem::rollout
