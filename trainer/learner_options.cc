#include "trainer/learner_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, LearnerOptions& options) {
  binder.Choice("dtype", &options.dtype,
                {{"fp32", ComputeDType::kFp32}, {"bf16", ComputeDType::kBf16}},
                "of linear layers and attention; masters, norms and log-softmax are always fp32");
  binder.Choice(
      "device", &options.device, {{"cpu", Device::kCpu}, {"cuda", Device::kCuda}},
      "where the policy computes and its parameters lie; cuda needs a build of the cuda preset "
      "and a GPU for each rank of a machine");
  BindNumerics(
      binder, &options.numerics,
      "exact: the forward gives the rollout servers' bits at equal weights, when they have the "
      "same dtype; fast and invariant: the trainer's own best kernels");
  binder.Integer("threads", &options.num_threads, {.min = 0, .max = 1024}, "threads",
                 "of the trainer's kernels; 0: one per core");
  binder.Flag(
      "checkpoint_activations", &options.checkpoint_activations,
      "keep only each layer's input for the backward pass and compute the rest again: about a "
      "tenth of the memory of a row's activations, a quarter more time");
  binder.Flag(
      "measure_reference_kl", &options.measure_reference_kl,
      "keep the starting weights and report the KL to them even when the loss has no KL term");
  BindOptions(binder, options.step);
}

}  // namespace tandem::trainer
