#include "cli/supervised/reward_model_flags.h"

#include "cli/io/shared_flags.h"
#include "cli/model/model_input.h"
#include "common/base/status_macros.h"
#include "common/process/memory.h"
#include "trainer/supervised/supervised_model.h"

namespace tandem::cli {

using trainer::EnsembleAggregation;
using trainer::RewardModelOptions;
using trainer::StepAggregation;
using trainer::StepBoundary;

StepBoundary BoundaryOf(const std::string& word) {
  if (word == "regex") return StepBoundary::kRegex;
  if (word == "marker") return StepBoundary::kMarker;
  return word == "tags" ? StepBoundary::kTags : StepBoundary::kNewline;
}

void RewardModelWords::Apply(RewardModelOptions& options) const {
  options.dtype = dtype == "bf16" ? ComputeDType::kBf16 : ComputeDType::kFp32;
  options.ensemble = EnsembleAggregation::kMean;
  if (ensemble == "min") options.ensemble = EnsembleAggregation::kMin;
  if (ensemble == "mean_minus_std") options.ensemble = EnsembleAggregation::kMeanMinusStd;
  options.steps = StepAggregation::kMin;
  if (steps == "product") options.steps = StepAggregation::kProduct;
  if (steps == "sum") options.steps = StepAggregation::kSum;
  if (steps == "mean") options.steps = StepAggregation::kMean;
  if (steps == "last") options.steps = StepAggregation::kLast;
  options.split.boundary = BoundaryOf(split);
}

CLI::Option* AddRewardModelFlag(CLI::App* sub, const char* name, RewardModelOptions& options) {
  return sub
      ->add_option(name, options.paths,
                   "directory of train-reward-model or transformers; several times: an ensemble")
      ->take_all()
      ->expected(1);
}

void AddAggregationFlags(CLI::App* sub, RewardModelOptions& options, RewardModelWords& words) {
  AddChoice(sub, "--dtype", words.dtype, {"fp32", "bf16"}, "compute dtype");
  AddChoice(sub, "--ensemble", words.ensemble, {"mean", "min", "mean_minus_std"},
            "how the rewards of several heads become one");
  AddNonNegative(sub, "--std-weight", options.std_weight,
                 "of mean_minus_std: how often the standard deviation is taken off");
  AddChoice(sub, "--steps", words.steps, {"min", "product", "sum", "mean", "last"},
            "how the probabilities of steps become a reward");
}

void AddSplitFlags(CLI::App* sub, trainer::StepOptions& options, std::string& boundary) {
  AddChoice(
      sub, "--boundary", boundary, {"newline", "regex", "marker", "tags"},
      "what ends a step: a line break; a match of --boundary-pattern (RE2); that text; or steps "
      "lie between its tags");
  sub->add_option("--boundary-pattern", options.pattern, "of --boundary regex, marker or tags");
}

absl::StatusOr<std::unique_ptr<trainer::RewardScorer>> LoadRewardModel(
    const RewardModelOptions& named) {
  RewardModelOptions options = named;
  for (std::string& path : options.paths) TANDEM_RETURN_IF_ERROR(FindModel(&path));
  KeepFreedMemory();
  trainer::SupervisedModel::UseThreads(options.threads);
  return trainer::RewardScorer::Load(options);
}

}  // namespace tandem::cli
