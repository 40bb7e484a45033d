#include "trainer/advantages/advantage_options.h"

#include "common/base/status_macros.h"

namespace tandem::trainer {

void BindOptions(OptionBinder& binder, AdvantageOptions& options) {
  binder.Choice("kind", &options.kind,
                {{"group_norm", AdvantageKind::kGroupNorm},
                 {"mean_only", AdvantageKind::kMeanOnly},
                 {"leave_one_out", AdvantageKind::kLeaveOneOut},
                 {"optimal_baseline", AdvantageKind::kOptimalBaseline},
                 {"pass_at_k", AdvantageKind::kPassAtK},
                 {"none", AdvantageKind::kNone},
                 {"greedy_baseline", AdvantageKind::kGreedyBaseline},
                 {"best_of_n", AdvantageKind::kBestOfN},
                 {"correct_only", AdvantageKind::kCorrectOnly},
                 {"best_worst", AdvantageKind::kBestWorst},
                 {"gae", AdvantageKind::kGae},
                 {"vtrace", AdvantageKind::kVtrace},
                 {"retrace", AdvantageKind::kRetrace}},
                "(R - mean) / (std + eps); R - mean; R - mean of the other members; R - mean "
                "weighted by length; of the best of k; R; R - reward of a greedy completion; 1 "
                "for the best member alone; 1 for each correct member; a pair of the best (1) and "
                "the worst (-1) for loss.kind preference; the last three with a critic "
                "(docs/algorithms.md)");
  binder.Choice("std", &options.std_convention,
                {{"sample", StdConvention::kSample}, {"population", StdConvention::kPopulation}},
                "divide the squared deviations by G - 1 or by G");
  binder.Number("eps", &options.eps, {.min = 0}, "", "added to the standard deviation");
  binder.Flag(
      "drop_zero_variance", &options.drop_zero_variance,
      "leave groups of equal rewards out of the batch, as kind best_worst does anyway; rewards "
      "and lengths are measured over them either way");
  binder.Integer("pass_k", &options.pass_k, {.min = 1}, "completions",
                 "kind pass_at_k: the k of which one has to be correct");
  binder.Flag("whiten", &options.whiten,
              "subtract the mean over all trained tokens of the step from every advantage and "
              "divide by their standard deviation");
  offpolicy::BindOptions(binder, options.value);
}

absl::Status CheckOptions(const AdvantageOptions& options, int64_t completions_per_group) {
  TANDEM_RETURN_IF_ERROR(offpolicy::CheckOptions(options.value));
  const AdvantageKind kind = options.kind;
  const bool imitates = kind == AdvantageKind::kBestOfN || kind == AdvantageKind::kCorrectOnly;
  if (options.drop_zero_variance && kind > AdvantageKind::kPassAtK && !MakesPairs(kind)) {
    return InvalidArgument(
        "advantage.drop_zero_variance leaves out groups of equal rewards, and with this "
        "advantage.kind they have a gradient: set it false");
  }
  if (options.whiten && imitates) {
    return InvalidArgument(
        "advantage.whiten with kind best_of_n or correct_only: all advantages are 1, and nothing "
        "would be left of them; set it false");
  }
  if (options.whiten && MakesPairs(kind)) {
    return InvalidArgument(
        "advantage.whiten with kind best_worst: its 1 and -1 say which completion of a pair is the "
        "better one, and are no advantages to normalise; set it false");
  }
  if (MakesPairs(kind) && completions_per_group < 2) {
    return InvalidArgument(
        "advantage.kind best_worst makes a pair of the completions of a prompt, and "
        "trainer.completions_per_prompt is ",
        completions_per_group, ": set it to 2 or more");
  }
  if (kind == AdvantageKind::kPassAtK && options.pass_k > completions_per_group) {
    return InvalidArgument("advantage.pass_k is ", options.pass_k,
                           ", over trainer.completions_per_prompt ", completions_per_group);
  }
  return absl::OkStatus();
}

}  // namespace tandem::trainer
