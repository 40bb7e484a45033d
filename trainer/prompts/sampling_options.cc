#include "trainer/prompts/sampling_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, TrainSamplingOptions& options) {
  binder.Number("temperature", &options.temperature, {.min = 1e-3}, "",
                "of the trained policy: all three log-probs use it");
  binder.Integer("max_new_tokens", &options.max_new_tokens, {.min = 1}, "tokens",
                 "longest completion, stop token included");
  binder.Integer("top_k", &options.top_k, {.min = 0}, "",
                 "draw from the k most likely ids; the trainer re-scores over the same; 0: all");
  binder.Number("top_p", &options.top_p, {.min = 0, .max = 1}, "",
                "draw from the smallest set of this probability, likewise; 0 and 1: all");
  binder.Number("min_p", &options.min_p, {.min = 0, .max = 1}, "",
                "draw from ids of at least this share of the likeliest, likewise; 0: all");
  binder.Integer("min_new_tokens", &options.min_new_tokens, {.min = 0}, "tokens",
                 "must be 0 for training");
}

}  // namespace tandem::trainer
