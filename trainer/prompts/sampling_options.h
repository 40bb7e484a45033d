// TrainSamplingOptions: how the completions to train on are sampled; section trainer.sampling of a run
// file. Used by group_request.h.
#pragma once

#include <cstdint>

#include "common/options/options.h"

namespace tandem::trainer {

// min_new_tokens is bound so that it can be refused with a reason: a policy cannot be trained on
// samples that were kept from ending.
struct TrainSamplingOptions {
  double temperature = 1;
  int64_t max_new_tokens = 256;
  int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  int64_t min_new_tokens = 0;
};
void BindOptions(OptionBinder& binder, TrainSamplingOptions& options);

}  // namespace tandem::trainer
