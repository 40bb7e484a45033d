// tandem sample: draws groups of completions, rewards them, and keeps the good ones as data for
// sft, preferences and reward models.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/data/data_flags.h"
#include "cli/io/live_line.h"
#include "cli/io/output_file.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/model/model_input.h"
#include "cli/tools/generate.h"
#include "cli/tools/reward_flags.h"
#include "cli/tools/rewarded_group.h"
#include "common/base/exit_codes.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"
#include "common/options/command_line.h"

namespace tandem::cli {
namespace {

struct SampleFlags {
  std::string model, data, out;
  std::string dtype;  // empty: that of the weights
  std::string keep = "correct";
  int32_t group_size = 8;
  int64_t limit = 0;
  int64_t threads = 0;
  rollout::SamplingParams sampling{.max_new_tokens = 128};
  std::vector<std::string> rewards;
  trainer::DataOptions prompts;
  trainer::RewardOptions reward;
};

KeptCompletions KeptOf(const std::string& keep) {
  if (keep == "best") return KeptCompletions::kBest;
  return keep == "pairs" ? KeptCompletions::kPairs : KeptCompletions::kCorrect;
}

// What became of the groups.
struct SampleTally {
  int64_t num_prompts = 0, num_solved = 0;  // solved: with a correct completion
  int64_t num_rows = 0, num_unusable = 0;   // unusable: blank, cut, or not rewarded
  int64_t num_rewarded = 0;
  double reward_sum = 0;

  void Add(std::span<const RewardedText> group) {
    ++num_prompts;
    num_solved += std::ranges::any_of(group, &RewardedText::correct);
    for (const RewardedText& each : group) {
      num_unusable += !each.usable;
      num_rewarded += each.usable;
      if (each.usable) reward_sum += each.reward;
    }
  }
};

std::vector<RewardedText> TextsOf(const std::vector<rollout::FinishedCompletion>& completions,
                                  const std::vector<trainer::Reward>& rewards) {
  std::vector<RewardedText> group;
  for (size_t i = 0; i < completions.size(); ++i) {
    const bool cut = completions[i].finish_reason == rollout::FinishReason::kLength;
    const bool is_blank = absl::StripAsciiWhitespace(completions[i].text).empty();
    group.push_back({.text = completions[i].text,
                     .reward = rewards[i].value,
                     .correct = rewards[i].correct,
                     .usable = !cut && !is_blank && rewards[i].mask_reason.empty()});
  }
  return group;
}

// Appends the rows of one group to `rows`.
absl::Status Keep(const SampleFlags& flags, const trainer::RowParser& parser,
                  const experience::v1::Prompt& prompt, std::span<const RewardedText> group,
                  SampleTally& tally, std::string& rows) {
  tally.Add(group);
  const KeptCompletions kept = KeptOf(flags.keep);
  const std::vector<size_t> chosen = Choose(group, kept);
  const size_t width = kept == KeptCompletions::kPairs ? 2 : 1;
  for (size_t i = 0; i < chosen.size(); i += width) {
    TANDEM_ASSIGN_OR_RETURN(const std::string row, RowOf(parser, prompt.source_json(), group,
                                                         std::span(chosen).subspan(i, width)));
    rows += row;
    ++tally.num_rows;
  }
  return absl::OkStatus();
}

std::vector<rollout::GroupRequest> RequestsOf(const SampleFlags& flags,
                                              const trainer::PromptSource& source, size_t count) {
  std::vector<rollout::GroupRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    const auto& ids = source.prompts()[i].token_ids();
    rollout::GroupRequest request;
    request.prompt.assign(ids.begin(), ids.end());
    request.num_completions = flags.group_size;
    request.sampling = flags.sampling;
    request.sampling.seed = flags.sampling.seed + i;
    requests.push_back(std::move(request));
  }
  return requests;
}

absl::Status Report(const SampleFlags& flags, const SampleTally& tally, int64_t num_too_long) {
  const std::string text = absl::StrFormat(
      "%d rows from %d prompts, of which %d have a correct completion; mean reward %.3f; %d "
      "completions blank, cut by length or without a reward, %d prompts too long",
      tally.num_rows, tally.num_prompts, tally.num_solved,
      tally.reward_sum / static_cast<double>(std::max<int64_t>(1, tally.num_rewarded)),
      tally.num_unusable, num_too_long);
  if (tally.num_rows > 0) {
    absl::PrintF("%s: %s\n", flags.out, text);
    return absl::OkStatus();
  }
  return trainer::WithExitCode(
      FailedPrecondition("no completion of ", flags.data, " is kept (", text,
                         "): raise --group-size, or look at the answers of the file, at --reward "
                         "and at --max-new-tokens"),
      ExitCode::kBadModelOrData);
}

absl::Status Sample(SampleFlags& flags) {
  TANDEM_RETURN_IF_ERROR(AsUsageError(rollout::ValidateSampling(flags.sampling)));
  std::error_code ignored;
  if (std::filesystem::exists(flags.out, ignored)) {
    return AlreadyExists(flags.out, " is there already; choose another --out");
  }
  TANDEM_RETURN_IF_ERROR(CheckOutputFolder(flags.out));
  TANDEM_RETURN_IF_ERROR(ApplyRewardFlags(flags.rewards, flags.reward));
  auto reward = trainer::RewardFunction::Create(flags.reward);
  if (!reward.ok()) return AsUsageError(reward.status());
  TANDEM_RETURN_IF_ERROR(CheckRowFlags(flags.prompts));
  TANDEM_RETURN_IF_ERROR(FindModel(&flags.model));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(flags.model));
  TANDEM_RETURN_IF_ERROR(BoundPrompts(config, flags.sampling.max_new_tokens, flags.prompts));
  TANDEM_ASSIGN_OR_RETURN(flags.dtype, ChooseDType(flags.model, flags.dtype));
  TANDEM_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(flags.model));
  TANDEM_ASSIGN_OR_RETURN(const auto source,
                          trainer::PromptSource::Open(flags.data, flags.prompts, 0, *tokenizer));
  TANDEM_ASSIGN_OR_RETURN(const auto parser, trainer::RowParser::Create(flags.prompts));
  size_t count = source->prompts().size();
  if (flags.limit > 0) count = std::min(count, static_cast<size_t>(flags.limit));
  std::vector<rollout::GroupRequest> requests = RequestsOf(flags, *source, count);
  TANDEM_ASSIGN_OR_RETURN(const auto engine,
                          CreateEngineFor(flags.model, flags.dtype, flags.threads, requests));
  LiveLine live;
  SampleTally tally;
  std::string rows;
  absl::Status kept;
  const size_t plain_every = std::max<size_t>(1, count / 10);
  TANDEM_RETURN_IF_ERROR(GenerateAll(
      *engine, std::move(requests),
      [&](size_t i, std::vector<rollout::FinishedCompletion> completions) {
        const experience::v1::Prompt& prompt = source->prompts()[i];
        kept.Update(Keep(flags, parser, prompt,
                         TextsOf(completions, RewardGroup(**reward, prompt, completions)), tally,
                         rows));
        const std::string line = absl::StrCat(
            "sample ", ProgressBar(static_cast<int64_t>(i) + 1, static_cast<int64_t>(count), 20),
            "  ", tally.num_rows, " rows, ", tally.num_solved, " prompts solved");
        if (!live.is_terminal() && (i + 1) % plain_every == 0) {
          live.Print(line);
        } else {
          live.Update(line);
        }
      }));
  live.Clear();
  TANDEM_RETURN_IF_ERROR(kept);
  if (tally.num_rows > 0) TANDEM_RETURN_IF_ERROR(WriteOutputFile(flags.out, rows));
  return Report(flags, tally, source->num_dropped());
}

void AddSampling(CLI::App* sub, SampleFlags& flags) {
  rollout::SamplingParams& sampling = flags.sampling;
  AddPositive(sub, "--temperature", sampling.temperature, "logits are divided by it");
  AddNonNegative(sub, "--top-k", sampling.top_k, "keep the k most likely tokens; 0: all");
  AddShare(sub, "--top-p", sampling.top_p,
           "keep the smallest set of tokens with this total probability; 1: all");
  AddShare(sub, "--min-p", sampling.min_p,
           "keep tokens with at least this share of the likeliest token's probability; 0: all");
  AddPositive(sub, "--max-new-tokens", sampling.max_new_tokens,
              "most tokens of a completion, stop token included");
  sub->add_option("--seed", sampling.seed, "prompt i (from 0) is sampled with seed + i")
      ->capture_default_str();
}

}  // namespace

void AddSampleCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<SampleFlags>();
  CLI::App* sub = app.add_subcommand(
      "sample", "Completions with rewards, of which the good ones are kept as training data");
  sub->add_option("--model", flags->model, kModelFlagHelp)->required();
  sub->add_option("--data", flags->data, kDataHelp)->required();
  sub->add_option("--out", flags->out, "file of JSON lines to make")->required();
  AddChoice(sub, "--keep", flags->keep, {"best", "correct", "pairs"},
            "of each prompt: the completion with the largest reward; every correct one (rejection "
            "sampling); or the best against the worst, as chosen and rejected");
  AddPositive(sub, "-n,--group-size", flags->group_size, "completions of each prompt");
  AddNonNegative(sub, "--limit", flags->limit, "only the first N prompts; 0: all");
  AddWeightsDTypeFlag(sub, flags->dtype);
  AddSampling(sub, *flags);
  AddRewardFlag(sub, flags->rewards);
  AddPromptFlags(sub, flags->prompts);
  AddThreadsFlag(sub, flags->threads);
  EndHelp(*sub,
          "Rows are prompt or messages with answer and reward, for `tandem sft`; with --keep pairs "
          "prompt, chosen\nand rejected, for `tandem train-preferences` and `train-reward-model`. "
          "Completions that are blank,\nwere cut by their length or have no reward are never kept.",
          "tandem sample --model MODEL --data train.jsonl --out correct.jsonl --max-new-tokens 16");
  SetAction(*sub, chosen, [flags] { return Finish(Sample(*flags)); });
}

}  // namespace tandem::cli
