// CalibrationStudy: the trials a plan asks for, on threads, into a store.
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
  // After each trial, by one thread at a time: how many of the missing ones are made, how many
  // there were, the last one.
  std::function<void(int64_t done, int64_t total, const PlannedTrial& last)> on_progress;
  std::function<bool()> should_stop;  // asked before each trial
};

// Makes what the store lacks of `plan`. A trial's result depends on the trial alone, so neither
// threads nor interruptions change it.
//   CANCELLED  should_stop said so; what is made is stored
//   errors of TrialMaker and TrialStore
absl::Status RunTrials(const Subject& subject, const CaptureShape& shape,
                       std::span<const PlannedTrial> plan, int threads, TrialStore& store,
                       const CalibrationHooks& hooks);

}  // namespace tandem::drift
