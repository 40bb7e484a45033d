// A real run beside its simulation: what a run directory states of each step that is no time
// (lengths, bytes of the push, settings) goes into the model, times come out and are compared with
// the run's own. The run must have had one machine to itself: its processes share the cores. Used
// by bench_simulate.cc. Pure but for ReadRun.
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
  std::vector<std::vector<int64_t>>
      lengths;                             // by group; of rollouts/step_N.jsonl where it is there
  double wire_bytes = 0, dense_bytes = 0;  // of the push, over all servers
  double rollout = 0, update = 0, push = 0, whole = 0;  // seconds, of time/
};

struct RecordedRun {
  int64_t prompts = 0, group = 0, max_staleness = 0, servers = 1, groups_in_flight = 8;
  int64_t max_sequences = 64;
  std::vector<RecordedStep> steps;
};

// Of metrics.jsonl and config.yaml; `rollouts` of a step may be missing: then its completions are
// as long as each other, but for the longest.
//   NOT_FOUND         no such file
//   INVALID_ARGUMENT  what cannot be read, with its place; steps that are not 1, 2, 3, ...
absl::StatusOr<RecordedRun> ReadRun(const std::string& directory);

// The lines of metrics.jsonl and the text of config.yaml. Errors as ReadRun.
absl::StatusOr<RecordedRun> ParseRun(const std::string& metrics, const std::string& config,
                                     const std::string& place);

// How much slower than by the constants each part is.
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

  // Predicted over real less 1, of the sum over steps from the second on (the first warms up; with
  // only one, of that).
  double Error() const;
  double MeanAbsoluteError() const;  // of steps, likewise
};

//   INVALID_ARGUMENT  a run without steps
absl::StatusOr<CheckResult> CheckRun(const RecordedRun& run, const Constants& machine,
                                     const Scales& scales);

// Scales with which `run` is predicted right on the whole, from the second step on.
//   INVALID_ARGUMENT  fewer than two steps; max_staleness > 0: time/rollout is then no time of
//   sampling
absl::StatusOr<Scales> FitScales(const RecordedRun& run, const Constants& machine);

std::string ToText(const CheckResult& result);
std::string ToJson(const CheckResult& result);

}  // namespace tandem::simulate
