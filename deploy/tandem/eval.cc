// tandem eval: greedy accuracy and pass@k on a JSON lines file, with the trainer's rewards and the
// rollout server's engine in this process.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/command_line.h"
#include "common/base/json_number.h"
#include "common/base/status_macros.h"
#include "deploy/tandem/generate.h"
#include "deploy/tandem/json_lines.h"
#include "deploy/tandem/live_line.h"
#include "deploy/tandem/model_input.h"
#include "deploy/tandem/subcommand.h"
#include "trainer/prompt_source.h"
#include "trainer/rewards.h"

namespace tandem::front {
namespace {

struct EvalFlags {
  std::string model;
  std::string dtype = "bf16";
  int64_t limit = 0;
  int32_t k = 0;
  rollout::SamplingParams sampling{.max_new_tokens = 128};
  int64_t threads = 0;
  std::vector<std::string> rewards;
  trainer::DataOptions data;
  trainer::RewardOptions reward;
};

struct Tally {
  int64_t num_prompts = 0;
  double greedy_sum = 0;
  int64_t greedy_passed = 0;
  double sampled_sum = 0;
  int64_t passed_at_k = 0;
};

absl::Status ParseRewards(EvalFlags& flags) {
  if (flags.rewards.empty()) return absl::OkStatus();
  flags.reward.weights.clear();
  for (const std::string& text : flags.rewards) {
    const size_t equals = text.find('=');
    double weight = 1;
    if (equals != std::string::npos && !absl::SimpleAtod(text.substr(equals + 1), &weight)) {
      return AsUsageError(
          absl::InvalidArgumentError(absl::StrCat("--reward ", text, ": want NAME=WEIGHT")));
    }
    flags.reward.weights.emplace_back(text.substr(0, equals), weight);
  }
  return absl::OkStatus();
}

// Two groups a prompt: 2i greedy with one completion, 2i + 1 sampled with k; without k only the
// first.
std::vector<rollout::GroupRequest> Requests(const EvalFlags& flags,
                                            const trainer::PromptSource& source, size_t count) {
  std::vector<rollout::GroupRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    const auto& ids = source.prompts()[i].token_ids();
    rollout::GroupRequest greedy;
    greedy.prompt.assign(ids.begin(), ids.end());
    greedy.sampling = flags.sampling;
    greedy.sampling.temperature = 0;
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

std::vector<trainer::Reward> Judge(trainer::RewardFunction& judge,
                                   const experience::v1::Prompt& prompt,
                                   const std::vector<rollout::FinishedCompletion>& completions) {
  std::vector<trainer::RewardInput> inputs;
  for (const rollout::FinishedCompletion& completion : completions) {
    inputs.push_back({.text = completion.text,
                      .answer = prompt.answer(),
                      .prompt = prompt.text(),
                      .source_json = prompt.source_json(),
                      .num_tokens = static_cast<int64_t>(completion.token_ids.size()),
                      .truncated = completion.finish_reason == rollout::FinishReason::kLength});
  }
  return judge.Score(inputs);
}

void Count(const std::vector<trainer::Reward>& rewards, bool greedy, double threshold,
           Tally& tally) {
  double sum = 0;
  bool passed = false;
  for (const trainer::Reward& reward : rewards) {
    sum += reward.value;
    passed |= reward.value >= threshold;
  }
  if (greedy) {
    ++tally.num_prompts;
    tally.greedy_sum += sum;
    tally.greedy_passed += passed ? 1 : 0;
  } else {
    tally.sampled_sum += sum / static_cast<double>(rewards.size());
    tally.passed_at_k += passed ? 1 : 0;
  }
}

void PrintTally(const Tally& tally, int32_t k) {
  const double n = static_cast<double>(std::max<int64_t>(1, tally.num_prompts));
  std::string line = absl::StrCat(
      "{\"num_prompts\":", tally.num_prompts, ",\"greedy\":", JsonNumber(tally.greedy_sum / n),
      ",\"greedy_share_correct\":", JsonNumber(static_cast<double>(tally.greedy_passed) / n));
  if (k > 0) {
    absl::StrAppend(&line, ",\"k\":", k, ",\"sampled\":", JsonNumber(tally.sampled_sum / n),
                    ",\"pass_at_k\":", JsonNumber(static_cast<double>(tally.passed_at_k) / n));
  }
  PrintLine(line + "}");
}

absl::Status Eval(EvalFlags& flags) {
  TANDEM_RETURN_IF_ERROR(ParseRewards(flags));
  auto judge = trainer::RewardFunction::Create(flags.reward);
  if (!judge.ok()) return AsUsageError(judge.status());
  TANDEM_RETURN_IF_ERROR(CheckModelDirectory(flags.model));
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
  Tally tally;
  TANDEM_RETURN_IF_ERROR(GenerateAll(
      *engine, std::move(requests),
      [&](size_t i, std::vector<rollout::FinishedCompletion> completions) {
        const experience::v1::Prompt& prompt = source->prompts()[i / per_prompt];
        const std::vector<trainer::Reward> rewards = Judge(**judge, prompt, completions);
        Count(rewards, i % per_prompt == 0, flags.reward.pass_threshold, tally);
        live.Update("eval " + ProgressBar(static_cast<int64_t>(i) + 1, total, 30));
      }));
  live.Clear();
  PrintTally(tally, flags.k);
  return absl::OkStatus();
}

}  // namespace

void AddEvalCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* sub = app.add_subcommand("eval", "Greedy accuracy and pass@k on a JSON lines file");
  sub->add_option("--model", flags->model, "Hugging Face directory")->required();
  sub->add_option("--data", flags->data.eval,
                  "JSON lines: prompt or messages and answer, or GSM8K's question and answer")
      ->required();
  sub->add_option("--dtype", flags->dtype, "compute dtype")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  sub->add_option("-k,--group-size", flags->k,
                  "also sample k completions a prompt and report pass@k; 0: no")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_option("--temperature", flags->sampling.temperature, "of the k completions")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--max-new-tokens", flags->sampling.max_new_tokens,
                  "of a completion at most, stop token included")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_option("--seed", flags->sampling.seed, "of the k completions")->capture_default_str();
  sub->add_option("--limit", flags->limit, "the first N prompts only; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_option("--reward", flags->rewards,
                  "NAME[=WEIGHT], as under trainer.reward.weights; may be given several times "
                  "(default: number_answer)")
      ->take_all()
      ->expected(1);
  sub->add_option("--suffix", flags->data.suffix, "added to each prompt or question");
  sub->add_option("--threads", flags->threads, "0: the cores of the machine")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  EndHelp(*sub,
          "Prints one JSON line: num_prompts, greedy (mean reward), greedy_share_correct and, "
          "with -k,\nsampled (mean reward) and pass_at_k (share of prompts with a completion "
          "that passes).",
          "tandem eval --model MODEL --data held_out.jsonl --max-new-tokens 16 -k 8");
  sub->callback([flags, &chosen] {
    chosen = [flags] {
      const absl::Status status = Eval(*flags);
      return status.ok() ? 0 : Fail(status);
    };
  });
}

}  // namespace tandem::front
