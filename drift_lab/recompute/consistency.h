// Consistency checks: did both sides score the same thing? They run before any drift number is
// computed. A finding is a discrete fault, such as re-tokenised ids, and not drift; no number is
// given then (docs/attribution.md).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/capture/capture.h"
#include "common/model/model_config.h"
#include "drift_lab/recompute/capture_weights.h"

namespace tandem::drift {

enum class DiscreteFault {
  kTokensDiffer,     // ids do not have the hash that they were sampled with
  kIdsOutside,       // ids outside the model's vocabulary
  kRecordMissing,    // log-probs that are not finite, or lower than any softmax gives
  kRecordSynthetic,  // a log-prob of exactly 0 where the distribution had entropy
  kVersionsFall,     // weight versions that decrease along a completion
  kModelDiffers,     // config.json is not that of the capture
  kWeightsDiffer,    // servers were not running what the trainer published
  kWeightsUnproven,  // the capture has no digests of what servers ran
  kSettings,         // sampling settings that cannot be scored again
};
std::string_view DiscreteFaultName(DiscreteFault fault);  // "tokens_differ", ...

struct ConsistencyFinding {
  DiscreteFault fault;
  std::string message;          // what is wrong, how often, an example, and what to do
  int64_t num_completions = 0;  // affected completions
};

// The checks that need only the capture and `config`, the model that it will be scored with. Pure.
std::vector<ConsistencyFinding> CheckCaptureConsistency(const offpolicy::Capture& capture,
                                                        const ModelConfig& config);

// All checks: those above; whether config.json in the directory `model` is the one that the capture
// was made with; and whether servers ran the weights that the trainer published.
//   any error of reading config.json and of CaptureWeights
absl::StatusOr<std::vector<ConsistencyFinding>> CheckConsistency(const offpolicy::Capture& capture,
                                                                 const ModelConfig& config,
                                                                 const std::string& model,
                                                                 const CaptureWeights& weights);

}  // namespace tandem::drift
