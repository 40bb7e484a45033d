// Trial: one capture with a known fault, and what the lab says about it; and the plan of all
// trials.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/calibration/subject.h"

namespace tandem::drift {

// `fault` is the name of an injector, of two injectors joined by '+', or of an unmodelled fault, or
// "none".
struct PlannedTrial {
  std::string fault;
  double strength = 0;
  uint64_t seed = 0;

  friend auto operator<=>(const PlannedTrial&, const PlannedTrial&) = default;
};

struct NamedInTrial {
  std::string cause;
  double share = 0;              // of the mean square
  offpolicy::Interval strength;  // as in the verdict: a value of the fault parameter
};

struct TrialResult {
  bool comparable = true;
  std::vector<NamedInTrial> named;  // largest share first
  bool open = false;                // the verdict has an open question
  double unexplained = 0;           // share of the mean square
  int64_t num_tokens = 0;
  offpolicy::Interval mean_abs, k3;  // of the whole drift; the intervals resample groups
  double seconds = 0;
};

struct CalibrationGrid {
  std::vector<std::string> faults;  // only these; empty: all
  // Captures of each injector, over all its strengths. A pair has an eighth of that, an unmodelled
  // fault a quarter.
  int captures = 200;
  int healthy = 200;  // captures without a fault
};
std::vector<PlannedTrial> PlanTrials(const CalibrationGrid& grid);

//   NOT_FOUND  no such injector
absl::StatusOr<Fault> FaultOf(const PlannedTrial& trial);

// Makes trials one after the other, and keeps the server of the last fault. Use from one thread.
class TrialMaker {
 public:
  explicit TrialMaker(const Subject& subject, const CaptureShape& shape)
      : subject_(subject), shape_(shape) {}

  //   any error of Subject and AttributeCapture
  absl::StatusOr<TrialResult> Make(const PlannedTrial& trial);

 private:
  const Subject& subject_;
  const CaptureShape shape_;
  std::string served_fault_;
  double served_strength_ = 0;
  std::unique_ptr<rollout::Engine> server_;
};

}  // namespace tandem::drift
