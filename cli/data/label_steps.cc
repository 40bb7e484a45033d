// tandem label-steps: labels of the steps of completions by Math-Shepherd, for `tandem
// train-reward-model --process`: continuations of each prefix, sampled by a rollout server and
// judged by the trainer's rewards.
#include <CLI/CLI.hpp>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/data/continued_steps.h"
#include "cli/data/line_job.h"
#include "cli/data/sampling_server.h"
#include "cli/io/json_lines.h"
#include "cli/io/live_line.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/supervised/reward_model_flags.h"
#include "cli/tools/reward_flags.h"
#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "trainer/preferences/step_data.h"
#include "trainer/rewards/rewards.h"

namespace tandem::cli {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

struct LabelFlags {
  ServerFlags server;
  LineJob job;
  SampleRequest sampling{.num_completions = 8};
  std::string labels = "hard", split = "newline";
  trainer::StepOptions steps;
  std::vector<std::string> rewards;
  trainer::RewardOptions reward;
};

struct LabelTotals {
  std::atomic<int64_t> steps = 0, continuations = 0, too_long = 0, unjudged = 0;
  std::atomic<int64_t> prompt_tokens = 0, prompt_tokens_cached = 0;
};

// What a line asks for.
struct LineToLabel {
  json prompt;
  std::string completion, answer, source;

  static absl::StatusOr<LineToLabel> Read(const json& line) {
    LineToLabel read;
    read.prompt = line.value("prompt", json());
    if (!read.prompt.is_string() && !read.prompt.is_array()) {
      return absl::InvalidArgumentError(
          "want \"prompt\" (a text or messages), \"completion\" and \"answer\"");
    }
    TANDEM_ASSIGN_OR_RETURN(read.completion, TextField(line, "completion"));
    TANDEM_ASSIGN_OR_RETURN(read.answer, TextField(line, "answer"));
    read.source = line.dump(-1, ' ', false, json::error_handler_t::replace);
    return read;
  }
};

class StepLabeller {
 public:
  StepLabeller(const LabelFlags& flags, SamplingServer* server, trainer::RewardFunction* rewards)
      : flags_(flags),
        kind_(flags.labels == "soft" ? StepLabel::kSoft : StepLabel::kHard),
        server_(server),
        rewards_(rewards) {}

  // Thread-safe.
  absl::StatusOr<std::optional<ordered_json>> Label(const json& line, int64_t number) {
    TANDEM_ASSIGN_OR_RETURN(const LineToLabel read, LineToLabel::Read(line));
    const Tokenizer& tokenizer = server_->tokenizer();
    TANDEM_ASSIGN_OR_RETURN(
        const std::string prompt,
        trainer::RenderPrompt(read.prompt.is_string() ? read.prompt.get<std::string>() : "",
                              read.prompt.is_string() ? "" : read.prompt.dump(), tokenizer));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> prompt_ids, tokenizer.Encode(prompt));
    if (prompt_ids.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
    TANDEM_ASSIGN_OR_RETURN(const ContinuedSteps steps,
                            SplitCompletion(read.completion, flags_.steps, tokenizer));
    const auto longest = static_cast<int64_t>(prompt_ids.size() + steps.prefix_ids.back().size());
    if (longest + flags_.sampling.max_new_tokens > server_->sampler().server().max_context_tokens) {
      ++totals.too_long;
      return std::nullopt;
    }
    std::vector<double> labels;
    for (size_t s = 0; s + 1 < steps.steps.size(); ++s) {
      TANDEM_ASSIGN_OR_RETURN(const double label, LabelPrefix(read, prompt, prompt_ids, steps, s,
                                                              static_cast<uint64_t>(number)));
      labels.push_back(label);
    }
    // The last step ends the completion, whose own answer is its label.
    TANDEM_ASSIGN_OR_RETURN(const double last,
                            Judge(read, prompt, {{.text = read.completion}}, ""));
    labels.push_back(last);
    totals.steps += static_cast<int64_t>(labels.size());
    return ordered_json{{"prompt", read.prompt}, {"steps", steps.steps}, {"labels", labels}};
  }

  LabelTotals totals;

 private:
  absl::StatusOr<double> LabelPrefix(const LineToLabel& read, const std::string& prompt,
                                     const std::vector<int32_t>& prompt_ids,
                                     const ContinuedSteps& steps, size_t s, uint64_t line) {
    SampleRequest request = flags_.sampling;
    request.prompt = prompt_ids;
    request.prompt.insert(request.prompt.end(), steps.prefix_ids[s].begin(),
                          steps.prefix_ids[s].end());
    request.seed = flags_.sampling.seed + (line << 16) + s;
    TANDEM_ASSIGN_OR_RETURN(const SampledGroup group, server_->sampler().Sample(request));
    totals.continuations += request.num_completions;
    totals.prompt_tokens += static_cast<int64_t>(request.prompt.size());
    totals.prompt_tokens_cached += group.prompt_tokens_cached;
    return Judge(read, prompt, group.completions, steps.prefixes[s]);
  }

  absl::StatusOr<double> Judge(const LineToLabel& read, const std::string& prompt,
                               const std::vector<SampledText>& sampled, const std::string& prefix) {
    std::vector<std::string> texts;
    for (const SampledText& one : sampled) texts.push_back(prefix + one.text);
    std::vector<trainer::RewardInput> inputs;
    for (size_t i = 0; i < texts.size(); ++i) {
      inputs.push_back({.text = texts[i],
                        .answer = read.answer,
                        .prompt = prompt,
                        .source_json = read.source,
                        .truncated = sampled[i].is_truncated});
    }
    std::vector<trainer::Reward> rewards;
    {
      MutexLock lock(&mu_);
      rewards = rewards_->Score(inputs);
    }
    int64_t right = 0, judged = 0;
    for (const trainer::Reward& reward : rewards) {
      if (trainer::IsRewardFailure(reward.mask_reason)) continue;
      ++judged;
      right += reward.correct;
    }
    totals.unjudged += std::ssize(rewards) - judged;
    if (judged == 0)
      return InvalidArgument("no completion was judged; the last: ", rewards.back().mask_reason);
    return LabelOf(kind_, right, judged);
  }

  const LabelFlags& flags_;
  const StepLabel kind_;
  SamplingServer* const server_;
  Mutex mu_;
  trainer::RewardFunction* const rewards_ ABSL_PT_GUARDED_BY(mu_);
};

std::string LabelSettings(const LabelFlags& flags) {
  std::string settings = absl::StrCat(
      "data ", flags.job.data, "\ncontinuations ", flags.sampling.num_completions, "\nlabels ",
      flags.labels, "\nsplit ", flags.split, " ", flags.steps.pattern, "\ntemperature ",
      flags.sampling.temperature, "\ntop_p ", flags.sampling.top_p, "\nmax_new_tokens ",
      flags.sampling.max_new_tokens, "\nseed ", flags.sampling.seed, "\n");
  for (const auto& [name, weight] : flags.reward.weights) {
    absl::StrAppend(&settings, "reward ", name, "=", weight, "\n");
  }
  return settings;
}

absl::Status LabelSteps(LabelFlags& flags) {
  TANDEM_RETURN_IF_ERROR(ApplyRewardFlags(flags.rewards, flags.reward));
  const auto rewards = trainer::RewardFunction::Create(flags.reward);
  if (!rewards.ok()) return AsUsageError(rewards.status());
  TANDEM_RETURN_IF_ERROR(AsUsageError(trainer::StepSplitter::Create(flags.steps).status()));
  flags.job.settings = LabelSettings(flags);
  TANDEM_ASSIGN_OR_RETURN(const auto server, SamplingServer::Open(flags.server));
  StepLabeller labeller(flags, server.get(), rewards->get());
  TANDEM_ASSIGN_OR_RETURN(const SampledServer before, server->sampler().Ask());
  const double start = MonotonicSeconds();
  LiveLine live;
  const auto counts = RunLines(
      flags.job, [&](const json& line, int64_t number) { return labeller.Label(line, number); },
      [&](int64_t done, int64_t total) {
        live.Update(absl::StrCat("label ", ProgressBar(done, total, 30), " lines"));
      });
  live.Clear();
  TANDEM_RETURN_IF_ERROR(counts.status());
  const double seconds = MonotonicSeconds() - start;
  TANDEM_ASSIGN_OR_RETURN(const SampledServer after, server->sampler().Ask());
  const LabelTotals& totals = labeller.totals;
  PrintLine(absl::StrCat(
      "{\"lines\":", counts->lines, ",\"resumed\":", counts->resumed, ",\"rows\":", counts->rows,
      ",\"too_long\":", totals.too_long.load(), ",\"steps\":", totals.steps.load(),
      ",\"continuations\":", totals.continuations.load(), ",\"unjudged\":", totals.unjudged.load(),
      ",\"prompt_tokens\":", totals.prompt_tokens.load(), ",\"prompt_tokens_cached\":",
      totals.prompt_tokens_cached.load(), ",\"prompt_tokens_computed\":",
      after.num_prompt_tokens_computed - before.num_prompt_tokens_computed,
      ",\"seconds\":", JsonNumber(seconds), "}"));
  return absl::OkStatus();
}

}  // namespace

void AddLabelStepsCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<LabelFlags>();
  CLI::App* sub = app.add_subcommand(
      "label-steps", "Labels of steps by continuations (Math-Shepherd), for process reward models");
  AddServerFlags(sub, flags->server);
  sub->add_option("--data", flags->job.data, "JSON lines: prompt, completion, answer")->required();
  sub->add_option("--out", flags->job.out,
                  "JSON lines for train-reward-model --process; one that was begun goes on")
      ->required();
  AddRange(sub, "--continuations", flags->sampling.num_completions, 1, 1024,
           "completions from the end of each step but the last");
  AddChoice(sub, "--labels", flags->labels, {"hard", "soft"},
            "hard: 1 if any continuation is right; soft: the share that is");
  AddSplitFlags(sub, flags->steps, flags->split);
  AddSampleFlags(sub, flags->sampling);
  AddRewardFlag(sub, flags->rewards);
  AddRange(sub, "--workers", flags->job.workers, 1, 1024, "lines at a time");
  EndHelp(*sub,
          "The last step is judged by the completion's own answer. Prints counts as a JSON line.",
          "tandem label-steps --model MODEL --data completions.jsonl --out steps.jsonl "
          "--continuations 8");
  SetAction(*sub, chosen, [flags] {
    flags->steps.boundary = BoundaryOf(flags->split);
    return Finish(LabelSteps(*flags));
  });
}

}  // namespace tandem::cli
