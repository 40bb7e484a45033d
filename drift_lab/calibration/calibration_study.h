// RunTrials: makes the trials of a plan on several threads and stores them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "drift_lab/calibration/subject.h"
#include "drift_lab/calibration/trial.h"
#include "drift_lab/calibration/trial_store.h"

namespace tandem::drift {

struct CalibrationHooks {
  // Called after each trial, by one thread at a time: how many of the missing trials are made, how
  // many were missing, and the last one.
  std::function<void(int64_t done, int64_t total, const PlannedTrial& last)> on_progress;
  std::function<bool()> should_stop;  // called before each trial; true ends the study
};

// Makes the trials of `plan` that the store lacks. A trial's result depends on the trial alone, so
// neither the number of threads nor interruptions change it.
//   CANCELLED  should_stop returned true; finished trials are stored
//   any error of TrialMaker and TrialStore
absl::Status RunTrials(const Subject& subject, const CaptureShape& shape,
                       std::span<const PlannedTrial> plan, int threads, TrialStore& store,
                       const CalibrationHooks& hooks);

}  // namespace tandem::drift
