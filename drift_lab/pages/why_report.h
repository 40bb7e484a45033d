// WhyReport: answers "why is my ratio not 1?" for a user's own run: `tandem drift why`. It has the
// measurements and the answer, as a table for a terminal and as JSON.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "drift_lab/ablation/attribution.h"
#include "drift_lab/why/run_ratios.h"
#include "drift_lab/why/trainer_experiments.h"
#include "drift_lab/why/why.h"

namespace tandem::drift {

struct WhyReport {
  WhyTarget target;
  Attribution attribution;
  TrainerExperiments trainer;  // only if the consistency checks have no findings
  RunRatios run;
  Why why;
};

// `path` is a run directory or a capture; it replaces options.capture.
//   any error of FindCapture, ReadRunRatios, Attribute and RunTrainerExperiments
absl::StatusOr<WhyReport> RunWhy(const std::string& path, AttributionOptions options,
                                 const PassProgress& progress);

// The answer, then what to do, then every experiment. Lines after the answer have at most 100
// columns. Pure.
std::string WhyTable(const WhyReport& report);

// One object; unknown numbers are null. docs/mismatch_guide.md describes the fields. Pure.
std::string WhyJson(const WhyReport& report);

}  // namespace tandem::drift
