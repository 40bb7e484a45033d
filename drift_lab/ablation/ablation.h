// The ladder: the same ids scored again and again, each time with one thing changed, from what the
// server recorded to what the trainer recorded, so that the differences add up to the whole gap of
// every token (drift.md section 3).
//
//   record | the record's causes | engine, decode replay | engine, prefill | KV of the own version
//   | cells of precision and cast | trainer, alone | trainer, packed | trainer, now | trainer's
//   record
//
// Between engine and trainer stand factors that can be switched by themselves (cells): all 2^k
// combinations are scored, in one fp32 engine whose sites are rounded as the serving engine's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/diagnosis/sampler_diagnosis.h"
#include "drift_lab/diagnosis/record_diagnosis.h"
#include "drift_lab/hypotheses/part.h"
#include "drift_lab/recompute/capture_weights.h"
#include "drift_lab/recompute/engine_forward.h"

namespace tandem::drift {

struct LadderOptions {
  bool full = false;          // factors: also the head, which engines of this project leave in fp32
  int64_t num_alone = 8;      // completions also decoded one at a time, to see company
  int64_t row_tokens = 2048;  // of the trainer's rows
  uint64_t seed = 1;          // of that sample
  int64_t bootstrap_replicates =
      offpolicy::BootstrapOptions().replicates;  // of strengths in the record
  int64_t num_threads = 0;                       // of the engines; 0: the cores of the machine
  std::string model;                             // directory: config, tokenizer
};

// (what is running, share done 0..1)
using LadderProgress = std::function<void(const std::string& what, double done)>;

// All log-probs are [T]; NaN where a rung could not score.
struct Ladder {
  std::vector<float> record;
  EngineScores replay;        // decode replay: also what the claimed distribution was
  RecordDiagnosis diagnosis;  // why the record is not the replay
  DrawDiagnosis draws;        // of a record that is: were tokens drawn from it?
  std::vector<float> alone;   // of the sample; NaN elsewhere
  std::vector<float> prefill;
  std::vector<float> own_version;         // prefill without KV of other versions
  bool carries_kv = false;                // servers may have had such
  std::vector<Part> factors;              // k
  std::vector<std::vector<float>> cells;  // [2^k]: bit i set: factor i as in the engine
  std::vector<float> trainer_cast;        // trainer, packed, at the weights as served
  std::vector<float> trainer_alone;       // at the masters that drew the token
  std::vector<float> trainer_packed;
  std::vector<float> trainer_now;  // packed, at the masters of proximal_version
  std::vector<float> proximal;     // the trainer's record; of a capture without one, trainer_now
  bool proximal_recorded = false;
};

// `capture` must have passed the gate.
//   NOT_FOUND, DATA_LOSS  weights that the capture needs (CaptureWeights)
//   errors of the two forwards
absl::StatusOr<Ladder> ClimbLadder(const offpolicy::Capture& capture, const CaptureWeights& weights,
                                   const LadderOptions& options, const LadderProgress& progress);

// The parts of every token, in the order of the ladder; each vector is [T]. For every token their
// sum is proximal - record to rounding in fp64. A factor's part is its Shapley value over the
// cells.
struct TokenParts {
  std::vector<Part> parts;
  std::vector<std::vector<double>> values;
  size_t first_factor = 0, num_factors = 0;  // which of the parts are factors
  // [2^k]: the gap of a token with these factors as in the engine, the others as in the trainer;
  // the first is 0. Empty without factors.
  std::vector<std::vector<double>> cells;
};
TokenParts SplitTokens(const Ladder& ladder);

}  // namespace tandem::drift
