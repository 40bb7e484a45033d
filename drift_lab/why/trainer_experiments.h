// The experiments of `tandem drift why` that the ablation does not have: the trainer against
// itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "drift_lab/ablation/attribution.h"
#include "drift_lab/hypotheses/hypothesis_search.h"

namespace tandem::drift {

// The same rows, under the weights that the step started from, are scored twice more: as in a
// proximal pass, and as in an update before its backward pass. Anything random (dropout, sums in
// another order) makes a difference.
struct TrainerTwice {
  int64_t num_tokens = 0;
  double again_max_abs = 0, update_max_abs = 0;  // nats, against the pass of the ablation
};

// The trainer's record against its replay at the temperature T that gives it back best. T is found
// by Gauss-Newton steps on log(1/T), along which a log-prob has the slope log p + H, as
// transform_families.cc does for the server.
struct TrainerTemperature {
  bool recorded = false;           // the capture has a trainer's record
  double claimed = 1, fitted = 1;  // temperature of sampling, and of the record
  Fit before, after;               // at the claimed and at the fitted temperature
  int64_t num_passes = 0;          // 0: the record is the replay

  // True if the record is the replay at another temperature.
  bool explains() const { return fitted != claimed && after.exact(); }
};

struct TrainerExperiments {
  TrainerTwice twice;
  TrainerTemperature temperature;
  std::vector<std::string> dropout;  // fields of config.json: "attention_dropout 0.1"
};

// `attribution` must have passed the consistency checks; `options` are those that it was made with.
//   NOT_FOUND, DATA_LOSS  as CaptureWeights
//   any error of TrainerForward
absl::StatusOr<TrainerExperiments> RunTrainerExperiments(const Attribution& attribution,
                                                         const AttributionOptions& options,
                                                         const PassProgress& progress);

// The fields of a config.json whose name contains "dropout" and whose value is above 0. Pure.
std::vector<std::string> DropoutFields(const std::string& config_json);

}  // namespace tandem::drift
