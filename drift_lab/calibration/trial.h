// Trial: one capture with a known fault, attributed; and the plan of all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/calibration/subject.h"

namespace tandem::drift {

// What a trial is of. `fault`: an injector's name, two with a + between them, an unmodelled
// fault's, or "none".
struct PlannedTrial {
  std::string fault;
  double strength = 0;
  uint64_t seed = 0;

  friend auto operator<=>(const PlannedTrial&, const PlannedTrial&) = default;
};

struct NamedInTrial {
  std::string cause;
  double share = 0;          // of the mean square
  offpolicy::Interval dial;  // strength as the verdict has it
};

struct TrialResult {
  bool comparable = true;
  std::vector<NamedInTrial> named;  // largest share first
  bool open = false;                // the verdict has an open question
  double unexplained = 0;           // share
  int64_t num_tokens = 0;
  offpolicy::Interval mean_abs, k3;  // of the whole gap, by group
  double seconds = 0;
};

struct CalibrationGrid {
  std::vector<std::string> faults;  // only these; empty: all
  int captures = 200;  // of each injector, over all its strengths; an eighth of a pair, a quarter
                       // of an unmodelled fault
  int nulls = 200;
};
std::vector<PlannedTrial> PlanTrials(const CalibrationGrid& grid);

// The fault of a trial.
//   NOT_FOUND  no such injector
absl::StatusOr<Fault> FaultOf(const PlannedTrial& trial);

// Makes trials, one after the other; keeps the server of the last fault. Use from one thread.
class TrialMaker {
 public:
  explicit TrialMaker(const Subject& subject, const CaptureShape& shape)
      : subject_(subject), shape_(shape) {}

  //   errors of Subject and of AttributeCapture
  absl::StatusOr<TrialResult> Make(const PlannedTrial& trial);

 private:
  const Subject& subject_;
  const CaptureShape shape_;
  std::string served_fault_;
  double served_strength_ = 0;
  std::unique_ptr<rollout::Engine> server_;
};

}  // namespace tandem::drift
