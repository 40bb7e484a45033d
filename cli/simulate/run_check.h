// Compares a recorded run with its simulation. The simulation gets what the run directory says
// about each step except durations (lengths, bytes of the push, settings), and its durations are
// compared with those of the run. The processes of the run must have shared one machine with
// nothing else. bench_simulate.cc uses it. Pure except ReadRun.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/simulate/constants.h"
#include "cli/simulate/pair_model.h"

namespace tandem::simulate {

struct RecordedStep {
  int64_t step = 0;
  std::vector<std::vector<int64_t>> lengths;            // by group
  double wire_bytes = 0, dense_bytes = 0;               // of the push, over all servers
  double rollout = 0, update = 0, push = 0, whole = 0;  // time/... in seconds
};

struct RecordedRun {
  int64_t prompts = 0, group = 0, max_staleness = 0, servers = 1, groups_in_flight = 8;
  int64_t max_sequences = 64;
  std::vector<RecordedStep> steps;
};

// Reads metrics.jsonl, config.yaml and rollouts/step_N.jsonl. If the rollouts of a step are
// missing, its completions get the recorded mean length, except the longest one.
//   NOT_FOUND         there is no such file
//   INVALID_ARGUMENT  a file (with the place) cannot be read, or steps are not 1, 2, 3, ...
absl::StatusOr<RecordedRun> ReadRun(const std::string& directory);

// The same from the texts of metrics.jsonl and config.yaml. Errors are those of ReadRun.
absl::StatusOr<RecordedRun> ParseRun(const std::string& metrics, const std::string& config,
                                     const std::string& place);

// How much slower each part is than the constants predict.
struct Scales {
  double rollout = 1, update = 1, push = 1;
};

struct CheckedStep {
  RecordedStep real;
  StepTimes predicted;
};
struct CheckResult {
  std::vector<CheckedStep> steps;
  Scales scales;

  // Predicted over recorded time, minus 1, of the sum over steps from the second on, because the
  // first warms up. A run of one step counts.
  double Error() const;
  double MeanAbsoluteError() const;  // over the same steps
};

//   INVALID_ARGUMENT  the run has no steps
absl::StatusOr<CheckResult> CheckRun(const RecordedRun& run, const Constants& machine,
                                     const Scales& scales);

// The scales with which the prediction has the right sums over steps from the second on.
//   INVALID_ARGUMENT  the run has fewer than two steps, or max_staleness > 0, so that time/rollout
//                     is not the time of sampling
absl::StatusOr<Scales> FitScales(const RecordedRun& run, const Constants& machine);

std::string ToText(const CheckResult& result);
std::string ToJson(const CheckResult& result);

}  // namespace tandem::simulate
