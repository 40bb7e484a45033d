// Replay: evaluates one capture under every correction, to show what the update would have been
// with each of them: `tandem drift replay`. Everything that is printed or written as JSON comes
// from this one struct.
//
// The gradient is that of the trainer at the weights of the capture's step, with each completion
// alone in its row and with the trainer's dtype and numerics. The batch is one update, the first
// after sampling.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/recompute/consistency.h"
#include "drift_lab/recompute/engine_forward.h"
#include "drift_lab/replay/baseline_noise.h"
#include "drift_lab/replay/replay_numbers.h"
#include "drift_lab/replay/replay_variants.h"

namespace tandem::drift {

struct ReplayOptions {
  std::string capture;  // directory
  std::string model;    // directory; empty: the one that the capture names
  std::string weights;  // for versions whose masters the capture does not carry; may be empty
  VariantSelection selection;
  std::vector<std::string> baselines;           // captures of baseline (lr = 0) runs
  std::vector<double> baseline_rates = {0.05};  // false-mask rates, in (0, 1)
  uint64_t seed = 1;                            // of the bootstrap and of the sketch
};

struct Replay {
  std::string path;
  offpolicy::Capture capture;
  std::vector<ConsistencyFinding> findings;  // if there are any, nothing below was measured

  ReplayNumbers numbers;
  std::vector<std::string> baselines;  // paths
  BaselineNoise baseline_noise;
  std::vector<std::string> notes;  // thresholds that the baseline could not choose, and why

  int64_t num_parameters = 0, num_backward_passes = 0;
  double relative_error = 0;          // standard error of a squared gradient norm; 0: exact
  double max_rescore_difference = 0;  // from the recorded proximal log-probs, nats
};

// Findings of the consistency checks are a result, not an error.
//   NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS  as ReadCapture, CaptureWeights, SelectVariants and
//                     ReadModelConfig
//   INVALID_ARGUMENT  no trainer scored the capture; it has no trained token with an advantage
//                     other than 0; or a baseline is none: its weights changed, faults were
//                     injected, or no trainer scored it
absl::StatusOr<Replay> RunReplay(const ReplayOptions& options, const PassProgress& progress);

}  // namespace tandem::drift
