// tandem eval: greedy accuracy and pass@k on prompts with answers, with the trainer's rewards and
// the rollout server's engine in this process.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/data/data_flags.h"
#include "cli/io/json_lines.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/tools/best_of.h"
#include "cli/tools/generate.h"
#include "cli/tools/reward_flags.h"
#include "cli/tools/rewarded_group.h"
#include "common/base/exit_codes.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "common/options/command_line.h"
#include "trainer/prompts/prompt_source.h"
#include "trainer/rewards/rewards.h"

namespace tandem::cli {
namespace {

struct EvalFlags {
  std::string model;
  std::string dtype;  // empty: that of the weights
  int64_t limit = 0;
  int32_t k = 0;
  rollout::SamplingParams sampling{.max_new_tokens = 128};
  int64_t threads = 0;
  BestOfFlags best_of;
  std::vector<std::string> rewards;
  trainer::DataOptions data;
  trainer::RewardOptions reward;
};

// Sums over prompts, either greedy or sampled.
struct Tally {
  int64_t num_prompts = 0, num_failed = 0;
  double reward_sum = 0;
  int64_t num_correct = 0;
  // Counted where a reward model chooses one of the sampled completions.
  double correct_share_sum = 0;  // of a prompt's completions
  int64_t num_best_correct = 0;

  double PerPrompt(double sum) const {
    return sum / static_cast<double>(std::max<int64_t>(1, num_prompts));
  }
};

// Two requests per prompt i: number 2i is greedy with one completion, number 2i + 1 samples k.
// Without k there is only the greedy one.
std::vector<rollout::GroupRequest> Requests(const EvalFlags& flags,
                                            const trainer::PromptSource& source, size_t count) {
  std::vector<rollout::GroupRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    const auto& ids = source.prompts()[i].token_ids();
    rollout::GroupRequest greedy;
    greedy.prompt.assign(ids.begin(), ids.end());
    greedy.sampling = {.temperature = 0, .max_new_tokens = flags.sampling.max_new_tokens};
    requests.push_back(greedy);
    if (flags.k == 0) continue;
    rollout::GroupRequest sampled = std::move(greedy);
    sampled.sampling = flags.sampling;
    sampled.sampling.seed = flags.sampling.seed + i;
    sampled.num_completions = flags.k;
    requests.push_back(std::move(sampled));
  }
  return requests;
}

// The completion that a reward model chooses: is it correct?
absl::Status CountBest(trainer::RewardScorer& scorer, const std::string& prompt,
                       const std::vector<rollout::FinishedCompletion>& completions,
                       const std::vector<trainer::Reward>& rewards, Tally& tally) {
  int64_t judged = 0, correct = 0;
  for (const trainer::Reward& reward : rewards) {
    if (trainer::IsRewardFailure(reward.mask_reason)) continue;
    ++judged;
    correct += reward.correct;
  }
  if (judged == 0) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const BestCompletion best, ChooseBest(scorer, prompt, completions));
  tally.correct_share_sum += static_cast<double>(correct) / static_cast<double>(judged);
  tally.num_best_correct += rewards[best.index].correct;
  return absl::OkStatus();
}

// A prompt without any reward is neither right nor wrong, so it is counted separately.
void Count(std::vector<trainer::Reward> rewards, Tally& tally) {
  std::erase_if(rewards, [](const trainer::Reward& reward) {
    return trainer::IsRewardFailure(reward.mask_reason);
  });
  if (rewards.empty()) {
    ++tally.num_failed;
    return;
  }
  double sum = 0;
  for (const trainer::Reward& reward : rewards) sum += reward.value;
  ++tally.num_prompts;
  tally.reward_sum += sum / static_cast<double>(rewards.size());
  tally.num_correct += std::ranges::any_of(rewards, &trainer::Reward::correct);
}

void PrintTally(const Tally& greedy, const Tally& sampled, int32_t k, int64_t num_too_long,
                bool with_best) {
  const auto share = [](const Tally& of) {
    return JsonNumber(of.PerPrompt(static_cast<double>(of.num_correct)));
  };
  std::string line = absl::StrCat("{\"num_prompts\":", greedy.num_prompts,
                                  ",\"num_failed\":", greedy.num_failed + sampled.num_failed,
                                  ",\"num_too_long\":", num_too_long,
                                  ",\"greedy\":", JsonNumber(greedy.PerPrompt(greedy.reward_sum)),
                                  ",\"greedy_share_correct\":", share(greedy));
  if (k > 0) {
    absl::StrAppend(&line, ",\"k\":", k,
                    ",\"sampled\":", JsonNumber(sampled.PerPrompt(sampled.reward_sum)),
                    ",\"pass_at_k\":", share(sampled));
    if (with_best) {
      absl::StrAppend(&line,
                      ",\"pass_at_1\":", JsonNumber(sampled.PerPrompt(sampled.correct_share_sum)),
                      ",\"best_of_k\":",
                      JsonNumber(sampled.PerPrompt(static_cast<double>(sampled.num_best_correct))));
    }
  }
  PrintLine(line + "}");
}

absl::Status Eval(EvalFlags& flags) {
  TANDEM_RETURN_IF_ERROR(ApplyRewardFlags(flags.rewards, flags.reward));
  auto judge = trainer::RewardFunction::Create(flags.reward);
  if (!judge.ok()) return AsUsageError(judge.status());
  TANDEM_RETURN_IF_ERROR(CheckRowFlags(flags.data));
  TANDEM_RETURN_IF_ERROR(FindModel(&flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto scorer, LoadBestOf(flags.best_of, flags.threads));
  if (scorer != nullptr) flags.k = flags.best_of.n;
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(flags.model));
  TANDEM_RETURN_IF_ERROR(BoundPrompts(config, flags.sampling.max_new_tokens, flags.data));
  TANDEM_ASSIGN_OR_RETURN(flags.dtype, ChooseDType(flags.model, flags.dtype));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto source,
                          trainer::PromptSource::Open(flags.data.eval, flags.data, 0, *tokenizer));
  size_t count = source->prompts().size();
  if (flags.limit > 0) count = std::min(count, static_cast<size_t>(flags.limit));
  std::vector<rollout::GroupRequest> requests = Requests(flags, *source, count);
  TANDEM_ASSIGN_OR_RETURN(const auto engine,
                          CreateEngineFor(flags.model, flags.dtype, flags.threads, requests));
  const size_t per_prompt = flags.k > 0 ? 2 : 1;
  const int64_t total = static_cast<int64_t>(requests.size());
  LiveLine live;
  Tally greedy, sampled;
  absl::Status failure;
  TANDEM_RETURN_IF_ERROR(GenerateAll(
      *engine, std::move(requests),
      [&](size_t i, std::vector<rollout::FinishedCompletion> completions) {
        const experience::v1::Prompt& prompt = source->prompts()[i / per_prompt];
        const bool is_greedy = i % per_prompt == 0;
        const std::vector<trainer::Reward> rewards = RewardGroup(**judge, prompt, completions);
        Count(rewards, is_greedy ? greedy : sampled);
        if (scorer != nullptr && !is_greedy && failure.ok()) {
          failure = CountBest(*scorer, prompt.text(), completions, rewards, sampled);
        }
        live.Update("eval " + ProgressBar(static_cast<int64_t>(i) + 1, total, 30));
      }));
  live.Clear();
  TANDEM_RETURN_IF_ERROR(failure);
  if (greedy.num_prompts + sampled.num_prompts == 0) {
    return trainer::WithExitCode(
        FailedPrecondition(flags.data.eval, ": none of ", count, " prompts has a reward (",
                           greedy.num_failed, " failed, ", source->num_dropped(),
                           " too long): there is nothing to average; look at ",
                           "the answers of the file and at --reward"),
        ExitCode::kBadModelOrData);
  }
  PrintTally(greedy, sampled, flags.k, source->num_dropped(), scorer != nullptr);
  return absl::OkStatus();
}

}  // namespace

void AddEvalCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* sub = app.add_subcommand("eval", "Greedy accuracy and pass@k on prompts with answers");
  sub->add_option("--model", flags->model, kModelFlagHelp)->required();
  sub->add_option("--data", flags->data.eval, kDataHelp)->required();
  AddWeightsDTypeFlag(sub, flags->dtype);
  CLI::Option* size =
      AddNonNegative(sub, "-k,--group-size", flags->k,
                     "also sample k completions per prompt and report pass@k; 0: no");
  AddBestOfFlags(sub, flags->best_of);
  sub->get_option("--best-of")->excludes(size);
  AddPositive(sub, "--temperature", flags->sampling.temperature,
              "temperature of the k completions");
  AddNonNegative(sub, "--top-k", flags->sampling.top_k,
                 "top-k of the k completions; 0: all tokens");
  AddShare(sub, "--top-p", flags->sampling.top_p, "top-p of the k completions; 1: all tokens");
  AddShare(sub, "--min-p", flags->sampling.min_p, "min-p of the k completions; 0: all tokens");
  AddPositive(sub, "--max-new-tokens", flags->sampling.max_new_tokens,
              "most tokens of a completion, stop token included");
  sub->add_option("--seed", flags->sampling.seed, "seed of the k completions")
      ->capture_default_str();
  AddNonNegative(sub, "--limit", flags->limit, "evaluate only the first N prompts; 0: all");
  AddRewardFlag(sub, flags->rewards);
  AddPromptFlags(sub, flags->data);
  AddThreadsFlag(sub, flags->threads);
  EndHelp(
      *sub,
      "Prints one JSON line: num_prompts, num_failed (without a reward, so not in the means), "
      "num_too_long\n(over the model's context with --max-new-tokens, so not evaluated), greedy "
      "(mean reward),\ngreedy_share_correct and, with -k, sampled (mean reward) and pass_at_k "
      "(share of prompts\nwith a correct completion); with --best-of also pass_at_1 (share of "
      "completions that are correct)\nand best_of_k (share of prompts whose completion of the "
      "largest reward is).",
      "tandem eval --model MODEL --data held_out.jsonl --max-new-tokens 16 -k 8");
  SetAction(*sub, chosen, [flags] { return Finish(Eval(*flags)); });
}

}  // namespace tandem::cli
