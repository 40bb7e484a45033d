// RunRatios: what a run recorded about the ratio of target to proximal policy between its optimizer
// updates, read from metrics.jsonl and config.yaml of the run directory.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::drift {

// The ratio in one train step, over the tokens of all its updates together. Single minibatches have
// no numbers.
struct StepRatio {
  int64_t step = 0, num_updates = 0, skipped_updates = 0;
  double mean = std::numeric_limits<double>::quiet_NaN();  // loss/ratio_mean; NaN where null
  double max = std::numeric_limits<double>::quiet_NaN();
  double clipped_share = 0;  // loss/clip_low_share + loss/clip_high_share
  double grad_norm = 0;
};

struct RunRatios {
  std::string run;               // directory; empty: the capture is not in a run
  bool bypass = false;           // correction.mode bypass: the loss's ratio is target / behaviour
  std::vector<StepRatio> steps;  // rising

  const StepRatio* Find(int64_t step) const;  // null if not recorded
};

// Skips lines that are not train steps, and a last line that is still being written.
//   INVALID_ARGUMENT  config.yaml is not YAML
absl::StatusOr<RunRatios> ReadRunRatios(const std::string& run);

// The capture to explain, and its run.
struct WhyTarget {
  std::string capture;  // directory
  std::string run;      // directory; empty: the capture is not in a run
};

// `path` is a capture or a run directory; for a run, takes its newest complete capture.
//   NOT_FOUND  neither, or a run without captures (the message says how to make one)
absl::StatusOr<WhyTarget> FindCapture(const std::string& path);

}  // namespace tandem::drift
