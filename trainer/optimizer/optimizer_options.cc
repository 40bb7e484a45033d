#include "trainer/optimizer/optimizer_options.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, OptimizerOptions& options) {
  binder.Number("learning_rate", &options.learning_rate, {.min = 0}, "", "after warm-up");
  constexpr NumberRange kDecay = {.min = 0, .max = 1, .exclusive_max = true};
  binder.Number("beta1", &options.beta1, kDecay, "", "decay of the first moment");
  binder.Number("beta2", &options.beta2, kDecay, "", "decay of the second moment");
  binder.Number("epsilon", &options.epsilon, {.min = 0}, "",
                "added to the root of the second moment");
  binder.Number("weight_decay", &options.weight_decay, {.min = 0}, "",
                "decoupled; never on norms and biases");
  binder.Number("max_grad_norm", &options.max_grad_norm, {.min = 0}, "",
                "the global gradient norm is clipped to this; 0: not");
  binder.Integer("warmup_updates", &options.warmup_updates, {.min = 0}, "updates",
                 "the learning rate rises linearly over these");
  binder.Choice("decay", &options.decay,
                {{"constant", LearningRateDecay::kConstant},
                 {"linear", LearningRateDecay::kLinear},
                 {"cosine", LearningRateDecay::kCosine}},
                "of the learning rate after warm-up");
  binder.Integer("decay_updates", &options.decay_updates, {.min = 0}, "updates",
                 "from the end of warm-up to the floor; needed by linear and cosine");
  binder.Number("min_learning_rate", &options.min_learning_rate, {.min = 0}, "",
                "the floor of linear and cosine decay");
}

double LearningRate(const OptimizerOptions& options, int64_t index) {
  if (index < options.warmup_updates) {
    return options.learning_rate * static_cast<double>(index + 1) /
           static_cast<double>(options.warmup_updates);
  }
  if (options.decay == LearningRateDecay::kConstant || options.decay_updates == 0) {
    return options.learning_rate;
  }
  const double progress = std::min(1.0, static_cast<double>(index - options.warmup_updates) /
                                            static_cast<double>(options.decay_updates));
  const double remaining = options.decay == LearningRateDecay::kLinear
                               ? 1 - progress
                               : 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return options.min_learning_rate +
         (options.learning_rate - options.min_learning_rate) * remaining;
}

}  // namespace tandem::trainer
