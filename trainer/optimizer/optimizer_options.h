// OptimizerOptions: options of stage 8. They stand apart from optimizer.h so that code which only
// reads options stays free of LibTorch.
#pragma once

#include <cstdint>

#include "common/options/options.h"

namespace tandem::trainer {

enum class LearningRateDecay { kConstant, kLinear, kCosine };

struct OptimizerOptions {
  double learning_rate = 1e-6;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;     // decoupled; never on norms and biases
  double max_grad_norm = 1;    // 0: no clipping
  int64_t warmup_updates = 0;  // rises linearly over this many
  LearningRateDecay decay = LearningRateDecay::kConstant;
  int64_t decay_updates = 0;  // updates after warm-up until the floor; needed by linear and cosine
  double min_learning_rate = 0;  // the floor
};
void BindOptions(OptionBinder& binder, OptimizerOptions& options);

// The learning rate of update `index`, from 0: pure.
double LearningRate(const OptimizerOptions& options, int64_t index);

}  // namespace tandem::trainer
