// The experiments of `tandem drift why` that the ladder does not have: the trainer against itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "drift_lab/ablation/attribution.h"
#include "drift_lab/hypotheses/hypothesis_search.h"

namespace tandem::drift {

// The same rows under the weights the step started from, scored again: as a proximal pass does, and
// as an update does before its backward pass. Anything random (dropout, sums in another order)
// differs.
struct TrainerTwice {
  int64_t num_tokens = 0;
  double again_max_abs = 0, update_max_abs = 0;  // nats, against the ladder's pass
};

// The trainer's record against its replay at the temperature T that gives it back best:
// Gauss-Newton on log(1/T), along which a log-prob's slope is log p + H, as transform_families.cc
// does for the server's.
struct TrainerTemperature {
  bool recorded = false;           // the capture has a trainer's record
  double claimed = 1, fitted = 1;  // T of sampling; that of the record
  Fit before, after;               // at these
  int64_t num_passes = 0;          // 0: the record is the replay

  // Is the record the replay at another temperature?
  bool explains() const { return fitted != claimed && after.exact(); }
};

struct TrainerExperiments {
  TrainerTwice twice;
  TrainerTemperature temperature;
  std::vector<std::string>
      dropout;  // fields of config.json that ask for it: "attention_dropout 0.1"
};

// `attribution` must have passed the gate; `options` are those it was made with.
//   NOT_FOUND, DATA_LOSS  CaptureWeights
//   errors of the trainer's forward
absl::StatusOr<TrainerExperiments> RunTrainerExperiments(const Attribution& attribution,
                                                         const AttributionOptions& options,
                                                         const LadderProgress& progress);

// Fields of a config.json with "dropout" in their name that are above 0. Pure.
std::vector<std::string> DropoutFields(const std::string& config_json);

}  // namespace tandem::drift
