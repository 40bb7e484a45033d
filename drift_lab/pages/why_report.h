// WhyReport: "why is my ratio not 1?" on a user's own run: `tandem drift why`. The measurements and
// the answer, for a terminal and as JSON.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "drift_lab/ablation/attribution.h"
#include "drift_lab/why/run_ratios.h"
#include "drift_lab/why/why.h"
#include "drift_lab/why/trainer_experiments.h"

namespace tandem::drift {

struct WhyReport {
  WhyTarget target;
  Attribution attribution;
  TrainerExperiments trainer;  // of a capture that passed the gate
  RunRatios run;
  Why why;
};

// `path`: a run directory or a capture; options.capture is set from it.
//   errors of FindCapture, ReadRunRatios, Attribute and RunTrainerExperiments
absl::StatusOr<WhyReport> RunWhy(const std::string& path, AttributionOptions options,
                                 const LadderProgress& progress);

// The answer first, then what to do, then every experiment. Below the answer at most
// 100 columns. Pure.
std::string WhyTable(const WhyReport& report);

// One object; numbers that are not known are null. Field by field in docs/mismatch_guide.md. Pure.
std::string WhyJson(const WhyReport& report);

}  // namespace tandem::drift
