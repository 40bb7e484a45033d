// RunRatios: what a run recorded about the ratio of target to proximal policy, between its
// optimizer updates: read from metrics.jsonl and config.yaml of a run directory.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::drift {

// Of one train step, over the tokens of all its updates together: no minibatch has a number of its
// own.
struct StepRatio {
  int64_t step = 0, num_updates = 0, skipped_updates = 0;
  double mean = std::numeric_limits<double>::quiet_NaN();  // loss/ratio_mean; NaN where null
  double max = std::numeric_limits<double>::quiet_NaN();
  double clipped_share = 0;  // loss/clip_low_share + loss/clip_high_share
  double grad_norm = 0;
};

struct RunRatios {
  std::string run;               // directory; empty: a capture that lies in no run
  bool bypass = false;           // correction.mode bypass: the loss's ratio is target / behaviour
  std::vector<StepRatio> steps;  // rising

  const StepRatio* Of(int64_t step) const;  // null: not recorded
};

// Lines that are no train step, and a last one that is being written, are left out.
//   INVALID_ARGUMENT  config.yaml is not YAML
absl::StatusOr<RunRatios> ReadRunRatios(const std::string& run);

// A run directory or a capture, as the user named it.
struct WhyTarget {
  std::string capture;  // directory; of a run, its newest whole capture
  std::string run;      // directory; empty: the capture lies in none
};
//   NOT_FOUND  neither; or a run without captures: says how to make one
absl::StatusOr<WhyTarget> FindCapture(const std::string& path);

}  // namespace tandem::drift
