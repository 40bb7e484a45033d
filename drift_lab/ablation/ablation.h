// Ablation: scores the same ids several times, with one thing changed at each step, from what the
// server recorded to what the trainer recorded. The differences between neighbouring steps add up
// to the whole training-inference mismatch (drift) of every token (docs/methods.md).
//
//   record | the record's causes | engine, decode replay | engine, prefill | KV of the own version
//   | adapters merged | engine without quantised weights and KV | cells of precision and cast | trainer, alone | trainer, packed | trainer, now | trainer's
//   record
//
// Some factors between engine and trainer can be switched independently. All 2^k combinations of
// them (cells) are scored, in an fp32 engine that rounds at the same sites as the serving engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/diagnosis/record_diagnosis.h"
#include "drift_lab/diagnosis/sampler_diagnosis.h"
#include "drift_lab/hypotheses/part.h"
#include "drift_lab/recompute/capture_weights.h"
#include "drift_lab/recompute/engine_forward.h"

namespace tandem::drift {

struct AttributionOptions {
  std::string capture;      // directory
  std::string model;        // directory; empty: the one that the capture names
  std::string weights;      // for versions whose masters the capture does not carry; may be empty
  bool full = false;        // one factor more: the head, which this project's engines keep in fp32
  uint64_t seed = 1;        // of the sample of completions decoded alone, and of the bootstrap
  int64_t num_threads = 0;  // of the engines; 0: the cores of the machine
  int64_t bootstrap_replicates = offpolicy::BootstrapOptions().replicates;
};

// All log-probs are [T]; NaN where a step could not score the token.
struct Ablation {
  std::vector<float> record;
  EngineScores replay;        // decode replay under the claimed distribution
  RecordDiagnosis diagnosis;  // why the record differs from the replay
  SamplerDiagnosis sampler;   // if it does not: were the tokens sampled from that distribution?
  std::vector<float> alone;   // decoded alone, for a sample of completions; NaN elsewhere
  std::vector<float> prefill;
  std::vector<float> own_version;  // prefill without KV of other versions
  std::vector<float> merged;       // that with adapters merged into the weights
  // That without the formats that the server names; merged where it names none, or where the
  // trainer's forward imitates them.
  std::vector<float> unquantised;
  bool unmerged = false;                  // merged is another step
  bool quantises = false;                 // unquantised is another step
  bool carries_kv = false;                // servers may have had KV of other versions
  std::vector<Part> factors;              // k
  std::vector<std::vector<float>> cells;  // [2^k]; bit i set: factor i as in the engine
  std::vector<float> trainer_cast;        // trainer, packed, at the weights as served
  std::vector<float> trainer_alone;       // at the masters of the version that sampled the token
  std::vector<float> trainer_packed;
  std::vector<float> trainer_now;  // packed, at the masters of proximal_version
  std::vector<float> proximal;     // the trainer's record; trainer_now for a capture without one
  bool proximal_recorded = false;
};

// `capture` must have passed the consistency checks, and `options` must name the model.
//   NOT_FOUND, DATA_LOSS  weights that the capture needs (CaptureWeights)
//   any error of the two forward passes
absl::StatusOr<Ablation> RunAblation(const offpolicy::Capture& capture,
                                     const CaptureWeights& weights,
                                     const AttributionOptions& options,
                                     const PassProgress& progress);

}  // namespace tandem::drift
