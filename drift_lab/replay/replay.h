// Replay: one capture under every correction: what the update would have been, had each been chosen
// (drift.md section 6): `tandem drift replay`. Everything that is printed or written as JSON comes
// out of this one struct.
//
// The gradient is that of the trainer at the weights of the capture's step, each completion alone
// in its row, with the trainer's dtype and numerics. The batch is one update, the first after
// sampling.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/recompute/consistency.h"
#include "drift_lab/replay/baseline_noise.h"
#include "drift_lab/replay/replay_variants.h"
#include "drift_lab/replay/replay_numbers.h"

namespace tandem::drift {

struct ReplayOptions {
  std::string capture;  // directory
  std::string model;    // directory; empty: the one the capture names
  std::string weights;  // for versions whose masters the capture does not carry; may be empty
  VariantSelection selection;
  std::vector<std::string> nulls;           // captures of null runs
  std::vector<double> null_rates = {0.05};  // in (0, 1)
  uint64_t seed = 1;                        // of the bootstrap and of the sketch
};

// (what is running, share done 0..1)
using ReplayProgress = std::function<void(const std::string& what, double done)>;

struct Replay {
  std::string path;
  offpolicy::Capture capture;
  std::vector<GateFinding> findings;  // not empty: nothing below was measured

  ReplayNumbers numbers;
  std::vector<std::string> nulls;  // paths
  NullFloor null_floor;
  std::vector<std::string> notes;  // thresholds that no null could choose, and why

  int64_t num_parameters = 0, num_backward_passes = 0;
  double relative_error = 0;          // of a squared gradient norm, from the sketch; 0: none
  double max_rescore_difference = 0;  // of the passes here against the recorded proximal log-probs
};

// Findings of the gate are a result, not an error.
//   NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS  of ReadCapture, CaptureWeights, SelectVariants and the
//   model
//                     directory
//   INVALID_ARGUMENT  a capture that no trainer re-scored, or without a trained token whose
//   advantage is
//                     not 0; a null that is none: its weights
//                     changed, faults were injected, or nothing was re-scored
absl::StatusOr<Replay> RunReplay(const ReplayOptions& options, const ReplayProgress& progress);

}  // namespace tandem::drift
