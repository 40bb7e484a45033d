#include "trainer/rewards/model/model_options.h"

#include "common/base/status_macros.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, RewardModelOptions& options) {
  binder.TextList(
      "paths", &options.paths,
      "reward models (directories or names) of tandem train-reward-model or of transformers; "
      "several are an ensemble, as several heads of one are");
  binder.Choice("ensemble", &options.ensemble,
                {{"mean", EnsembleAggregation::kMean},
                 {"min", EnsembleAggregation::kMin},
                 {"mean_minus_std", EnsembleAggregation::kMeanMinusStd}},
                "how the rewards of several heads become one");
  binder.Number("std_weight", &options.std_weight, {.min = 0}, "",
                "of mean_minus_std: how often the standard deviation is taken off");
  binder.Choice("steps", &options.steps,
                {{"min", StepAggregation::kMin},
                 {"product", StepAggregation::kProduct},
                 {"sum", StepAggregation::kSum},
                 {"mean", StepAggregation::kMean},
                 {"last", StepAggregation::kLast}},
                "process reward model: how the probabilities that the steps are right become the "
                "reward of the completion");
  binder.Flag("each_step", &options.each_step,
              "process reward model: each probability is a reward at the end of its step, and "
              "steps is not used");
  BindOptions(binder, options.split);
  binder.Choice("dtype", &options.dtype,
                {{"fp32", ComputeDType::kFp32}, {"bf16", ComputeDType::kBf16}}, "of the pass");
  binder.Integer("threads", &options.threads, {.min = 0, .max = 1024}, "threads",
                 "of the pass; 0: as many as the trainer's");
  binder.Integer("batch_tokens", &options.batch_tokens, {.min = 1, .max = 1 << 24}, "tokens",
                 "of a row of completions that are scored together: bounds the memory of a pass");
}

absl::Status CheckRewardModelOptions(const RewardModelOptions& options) {
  if (options.paths.empty()) {
    return InvalidArgument(
        "reward.model.paths is empty: name a directory of tandem train-reward-model");
  }
  const absl::Status split = StepSplitter::Create(options.split).status();
  if (split.ok()) return split;
  return InvalidArgument("reward.model: ", split.message());
}

}  // namespace tandem::trainer
