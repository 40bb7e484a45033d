#include "cli/tools/best_of.h"

#include <optional>
#include <utility>

#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "common/base/status_macros.h"
#include "trainer/rewards/model/model_reward.h"

namespace tandem::cli {

void AddBestOfFlags(CLI::App* sub, BestOfFlags& flags) {
  AddNonNegative(sub, "--best-of", flags.n,
                 "sample so many completions per prompt and choose by --reward-model; 0: no");
  AddRewardModelFlag(sub, "--reward-model", flags.model);
  AddChoice(sub, "--reward-ensemble", flags.words.ensemble, {"mean", "min", "mean_minus_std"},
            "how the rewards of several heads become one");
  AddNonNegative(sub, "--reward-std-weight", flags.model.std_weight,
                 "of mean_minus_std: how often the standard deviation is taken off");
  AddChoice(sub, "--reward-steps", flags.words.steps, {"min", "product", "sum", "mean", "last"},
            "how the probabilities of steps become a reward");
  AddSplitFlags(sub, flags.model.split, flags.words.split);
}

absl::StatusOr<std::unique_ptr<trainer::RewardScorer>> LoadBestOf(BestOfFlags& flags,
                                                                  int64_t num_threads) {
  if (flags.n == 0 && flags.model.paths.empty()) return nullptr;
  if (flags.n == 0 || flags.model.paths.empty()) {
    return AsUsageError(InvalidArgument(
        "--best-of N and --reward-model DIR go together: the model chooses one of N completions"));
  }
  flags.words.Apply(flags.model);
  flags.model.threads = num_threads;
  return LoadRewardModel(flags.model);
}

absl::StatusOr<BestCompletion> ChooseBest(
    trainer::RewardScorer& scorer, std::string_view prompt,
    const std::vector<rollout::FinishedCompletion>& completions) {
  std::vector<size_t> scored;
  std::vector<trainer::TextToScore> texts;
  absl::Status failure = absl::InvalidArgumentError("there is no completion");
  for (size_t i = 0; i < completions.size(); ++i) {
    auto split =
        trainer::SplitForScoring(scorer, prompt, completions[i].text,
                                 completions[i].finish_reason == rollout::FinishReason::kLength);
    if (!split.ok()) {
      failure = split.status();
      continue;
    }
    scored.push_back(i);
    texts.push_back(std::move(split->text));
  }
  std::optional<BestCompletion> best;
  const auto rewards = scorer.Score(texts);
  for (size_t t = 0; t < scored.size(); ++t) {
    if (!rewards[t].ok()) {
      failure = rewards[t].status();
    } else if (!best.has_value() || rewards[t]->reward > best->reward) {
      best = {scored[t], rewards[t]->reward};
    }
  }
  if (best.has_value()) return *best;
  return InvalidArgument("the reward model scores no completion: ", failure.message());
}

}  // namespace tandem::cli
