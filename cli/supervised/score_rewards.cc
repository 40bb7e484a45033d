// tandem score-rewards: what a reward model says of completions, a JSON line for each line.
#include <CLI/CLI.hpp>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "cli/io/shared_flags.h"
#include "cli/io/subcommand.h"
#include "cli/supervised/reward_model_flags.h"
#include "common/base/status_macros.h"
#include "common/options/command_line.h"
#include "trainer/preferences/step_data.h"
#include "trainer/rewards/model/reward_scorer.h"

namespace tandem::cli {
namespace {

using trainer::ModelReward;
using trainer::RewardModelKind;
using trainer::RewardScorer;
using trainer::TextToScore;

struct ScoreFlags {
  trainer::RewardModelOptions model;
  std::string data = "-";
  RewardModelWords words;
};

// {"ids", "num_prompt_tokens"}
absl::StatusOr<TextToScore> ReadIds(const nlohmann::json& line) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsField(line, "ids"));
  const int64_t prompt = line.value("num_prompt_tokens", int64_t{1});
  const auto count = static_cast<int64_t>(ids.size());
  if (prompt < 1 || prompt >= count) {
    return InvalidArgument("\"num_prompt_tokens\" is ", prompt, " of ", count,
                           " ids; want at least 1 and fewer than there are");
  }
  TextToScore text;
  text.prompt_ids.assign(ids.begin(), ids.begin() + prompt);
  text.completion_ids.assign(ids.begin() + prompt, ids.end());
  return text;
}

absl::StatusOr<std::vector<std::string>> ReadSteps(const nlohmann::json& line) {
  if (!line.contains("steps") || !line["steps"].is_array() || line["steps"].empty()) {
    return absl::InvalidArgumentError(
        "want \"steps\", a list of texts: this is a process reward model");
  }
  std::vector<std::string> steps;
  for (const auto& step : line["steps"]) {
    if (!step.is_string()) return absl::InvalidArgumentError("\"steps\": want texts");
    steps.push_back(step.get<std::string>());
  }
  return steps;
}

// Ids, or a prompt (text or messages) with a completion or steps.
absl::StatusOr<TextToScore> ReadText(const nlohmann::json& line, const RewardScorer& scorer) {
  if (line.contains("ids")) return ReadIds(line);
  const nlohmann::json prompt = line.value("prompt", nlohmann::json());
  if (!prompt.is_string() && !prompt.is_array()) {
    return absl::InvalidArgumentError(
        "want \"prompt\" (a text or messages) with \"completion\" or \"steps\", or \"ids\" with "
        "\"num_prompt_tokens\"");
  }
  TextToScore text;
  if (scorer.kind() == RewardModelKind::kProcess) {
    TANDEM_ASSIGN_OR_RETURN(text.steps, ReadSteps(line));
  } else {
    TANDEM_ASSIGN_OR_RETURN(text.steps.emplace_back(), TextField(line, "completion"));
  }
  TANDEM_ASSIGN_OR_RETURN(
      text.prompt,
      trainer::RenderPrompt(prompt.is_string() ? prompt.get<std::string>() : "",
                            prompt.is_string() ? "" : prompt.dump(), scorer.tokenizer()));
  return text;
}

std::string Numbers(const std::vector<double>& values) {
  return FloatsToJson(std::vector<float>(values.begin(), values.end()));
}

std::string Number(double value) {
  const std::string list = Numbers({value});
  return list.substr(1, list.size() - 2);
}

std::string AnswerJson(const ModelReward& reward, const RewardScorer& scorer) {
  std::string json = absl::StrCat("{\"reward\":", Number(reward.reward));
  if (scorer.num_members() > 1) {
    absl::StrAppend(&json, ",\"rewards\":", Numbers(reward.members),
                    ",\"disagreement\":", Number(reward.disagreement));
  }
  if (scorer.kind() == RewardModelKind::kProcess) {
    absl::StrAppend(&json, ",\"steps\":", Numbers(reward.steps));
  }
  return json + "}";
}

absl::Status ScoreRewards(const ScoreFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(flags.data));
  TANDEM_ASSIGN_OR_RETURN(const auto scorer, LoadRewardModel(flags.model));
  return reader->ForEach([&](const nlohmann::json& line) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const TextToScore text, ReadText(line, *scorer));
    const auto rewards = scorer->Score(std::span(&text, 1));
    TANDEM_RETURN_IF_ERROR(rewards[0].status());
    PrintLine(AnswerJson(*rewards[0], *scorer));
    return absl::OkStatus();
  });
}

}  // namespace

void AddScoreRewardsCommand(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* sub = app.add_subcommand("score-rewards", "Rewards of completions by a reward model");
  AddRewardModelFlag(sub, "--model", flags->model)->required();
  sub->add_option("--data", flags->data,
                  "JSON lines: prompt with completion, or with steps for a process reward model, "
                  "or ids with num_prompt_tokens; -: standard input")
      ->capture_default_str();
  AddAggregationFlags(sub, flags->model, flags->words);
  AddThreadsFlag(sub, flags->model.threads);
  EndHelp(*sub, "", "tandem score-rewards --model rm --data completions.jsonl");
  SetAction(*sub, chosen, [flags] {
    flags->words.Apply(flags->model);
    return Finish(ScoreRewards(*flags));
  });
}

}  // namespace tandem::cli
