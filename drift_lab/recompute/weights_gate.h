// The part of the comparability gate that needs files: is the model the one the capture was made
// with, and did servers run the weights that the trainer published (comparability.h has the rest)?
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "drift_lab/recompute/capture_weights.h"
#include "drift_lab/recompute/consistency.h"

namespace tandem::drift {

// `model`: directory of config.json.
//   errors of reading it and of CaptureWeights
absl::StatusOr<std::vector<GateFinding>> CheckModelAndWeights(const offpolicy::Capture& capture,
                                                              const std::string& model,
                                                              const CaptureWeights& weights);

}  // namespace tandem::drift
