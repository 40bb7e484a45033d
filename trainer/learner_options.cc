#include "trainer/learner_options.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, LearnerOptions& options) {
  binder.Choice("dtype", &options.dtype, {{"fp32", ComputeDType::kFp32}, {"bf16", ComputeDType::kBf16}},
                "of linear layers and attention; masters, norms and log-softmax are always fp32");
  binder.Integer("threads", &options.num_threads, {.min = 0, .max = 1024}, "threads",
                 "of the trainer's kernels; 0: one per core");
}

}  // namespace tandem::trainer
