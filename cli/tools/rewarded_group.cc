#include "cli/tools/rewarded_group.h"

#include <algorithm>

#include "cli/io/subcommand.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

absl::Status BoundPrompts(const ModelConfig& config, int64_t max_new_tokens,
                          trainer::DataOptions& data) {
  data.over_length = trainer::OverLength::kDrop;
  data.max_prompt_tokens = config.max_position_embeddings - max_new_tokens;
  if (data.max_prompt_tokens >= 1) return absl::OkStatus();
  return AsUsageError(InvalidArgument("--max-new-tokens ", max_new_tokens,
                                      " leaves no room for a prompt in the model's context of ",
                                      config.max_position_embeddings));
}

std::vector<trainer::Reward> RewardGroup(
    trainer::RewardFunction& reward, const experience::v1::Prompt& prompt,
    const std::vector<rollout::FinishedCompletion>& completions) {
  std::vector<trainer::RewardInput> inputs;
  for (const rollout::FinishedCompletion& completion : completions) {
    inputs.push_back({.text = completion.text,
                      .answer = prompt.answer(),
                      .prompt = prompt.text(),
                      .source_json = prompt.source_json(),
                      .num_tokens = static_cast<int64_t>(completion.token_ids.size()),
                      .truncated = completion.finish_reason == rollout::FinishReason::kLength,
                      .token_ids = completion.token_ids});
  }
  return reward.Score(inputs);
}

std::vector<size_t> Choose(std::span<const RewardedText> group, KeptCompletions kept) {
  std::vector<size_t> usable;
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i].usable) usable.push_back(i);
  }
  if (usable.empty()) return {};
  if (kept == KeptCompletions::kCorrect) {
    std::vector<size_t> chosen;
    for (const size_t i : usable) {
      const auto same = [&](size_t j) { return group[j].text == group[i].text; };
      if (group[i].correct && std::ranges::none_of(chosen, same)) chosen.push_back(i);
    }
    return chosen;
  }
  const auto reward = [&](size_t i) { return group[i].reward; };
  const size_t best = *std::ranges::max_element(usable, {}, reward);
  if (kept == KeptCompletions::kBest) return {best};
  const size_t worst = *std::ranges::min_element(usable, {}, reward);
  if (group[best].reward == group[worst].reward) return {};
  return {best, worst};
}

absl::StatusOr<std::string> RowOf(const trainer::RowParser& parser, const std::string& source_json,
                                  std::span<const RewardedText> group,
                                  std::span<const size_t> chosen) {
  using json = nlohmann::ordered_json;
  TANDEM_ASSIGN_OR_RETURN(const trainer::PromptRow source, parser.Parse(source_json, "the row"));
  const bool is_pair = chosen.size() == 2;
  json row;
  if (source.messages_json.empty()) {
    row["prompt"] = source.text;
  } else {
    row[is_pair ? "prompt" : "messages"] = json::parse(source.messages_json);
  }
  if (!source.tools_json.empty()) row["tools"] = json::parse(source.tools_json);
  const RewardedText& best = group[chosen[0]];
  if (is_pair) {
    const RewardedText& worst = group[chosen[1]];
    row["chosen"] = best.text;
    row["rejected"] = worst.text;
    row["score_chosen"] = best.reward;
    row["score_rejected"] = worst.reward;
  } else {
    row["answer"] = best.text;
    row["reward"] = best.reward;
  }
  return row.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::cli
