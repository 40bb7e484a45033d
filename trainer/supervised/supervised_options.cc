#include "trainer/supervised/supervised_options.h"

#include <algorithm>

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, SupervisedOptions& options) {
  binder.Integer("epochs", &options.epochs, {.min = 1}, "", "passes over the data");
  binder.Integer("max_updates", &options.max_updates, {.min = 0}, "updates",
                 "end after so many, however many epochs there are; 0: no limit");
  binder.Integer("batch", &options.batch, {.min = 1}, "examples",
                 "of one optimizer update, over all ranks");
  binder.Integer("seed", &options.seed, {.min = 0}, "",
                 "of the order of the examples and of what is held out");
  binder.Integer("microbatch_tokens", &options.microbatch_tokens, {.min = 1}, "tokens",
                 "of one row, which is scored and differentiated at once; an example that is "
                 "longer has a row of its own");
  binder.Flag("shuffle", &options.shuffle,
              "each epoch in an order of its own, by the seed; false: the order of the file");
  binder.Choice("dtype", &options.dtype,
                {{"fp32", ComputeDType::kFp32}, {"bf16", ComputeDType::kBf16}},
                "compute dtype; masters are fp32");
  binder.Choice("device", &options.device, {{"cpu", Device::kCpu}, {"cuda", Device::kCuda}},
                "where the passes run; cuda: one device for each rank, in a build with CUDA");
  binder.Flag("checkpoint_activations", &options.checkpoint_activations,
              "keep the input of each layer only and compute the rest again: a tenth of the "
              "activations, a quarter more time");
  binder.Flag("shard_parameters", &options.shard_parameters,
              "each rank holds its part of weights and gradients only");
  binder.Integer("evaluate_every", &options.evaluate_every, {.min = 0}, "updates",
                 "between two evaluations on held-out rows; 0: at the end only");
  binder.Integer("checkpoint_every", &options.checkpoint_every, {.min = 0}, "updates",
                 "between two checkpoints; 0: only when a signal stops the run");
}

int64_t NumUpdates(const SupervisedOptions& options, int64_t num_examples) {
  const int64_t all = (num_examples + options.batch - 1) / options.batch * options.epochs;
  return options.max_updates == 0 ? all : std::min(all, options.max_updates);
}

}  // namespace tandem::trainer
