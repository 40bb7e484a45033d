// The comparability gate: is there one thing that both sides scored? Before any drift number; what
// it finds is a discrete fault, and then there is no number to print (drift.md section 3). Pure but
// for the digests of weights, which are the caller's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/capture/capture.h"
#include "common/model/model_config.h"

namespace tandem::drift {

enum class DiscreteFault {
  kTokensDiffer,     // ids do not have the hash they were drawn with: re-tokenised or changed
  kIdsOutside,       // ids that the model does not have
  kRecordMissing,    // log-probs that are not finite, or far below any a softmax gives
  kRecordSynthetic,  // a log-prob of exactly 0 where the distribution was not a point
  kVersionsFall,     // versions that decrease along a completion
  kModelDiffers,     // another config.json or tokenizer than the capture's
  kWeightsDiffer,    // servers were not running what the trainer published
  kWeightsUnproven,  // nothing says what they ran
  kSettings,         // sampling that cannot be re-scored
};
std::string_view DiscreteFaultName(DiscreteFault fault);  // "tokens_differ", ...

struct GateFinding {
  DiscreteFault fault;
  std::string message;          // what, how many, an example, and what to do
  int64_t num_completions = 0;  // affected
};

// What of the capture alone is wrong; `config` is the model it will be scored with.
std::vector<GateFinding> CheckComparable(const offpolicy::Capture& capture,
                                         const ModelConfig& config);

}  // namespace tandem::drift
