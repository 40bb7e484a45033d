#include "trainer/advantages/step_tokens.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>

#include "common/base/status_macros.h"
#include "proto/experience.pb.h"
#include "trainer/experience/drawn_tokens.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

// The text of a completion as its server makes it: ids that only the model knows have none.
absl::StatusOr<std::string> TextOf(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  std::vector<int32_t> known;
  std::ranges::copy_if(ids, std::back_inserter(known),
                       [&](int32_t id) { return id < tokenizer.vocab_size(); });
  return tokenizer.Decode(known, /*skip_special_tokens=*/false);
}

// The least number of tokens, at least 1, whose text has `end_byte` bytes. The text of a prefix of
// the tokens never gets shorter, so it is found by bisection.
absl::StatusOr<int64_t> FindToken(const Tokenizer& tokenizer, std::span<const int32_t> ids,
                                  int64_t end_byte) {
  size_t low = 1, high = ids.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    TANDEM_ASSIGN_OR_RETURN(const std::string text, TextOf(tokenizer, ids.first(middle)));
    if (static_cast<int64_t>(text.size()) >= end_byte) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return static_cast<int64_t>(low);
}

}  // namespace

absl::StatusOr<std::vector<std::vector<RewardedStep>>> FindStepTokens(
    const Tokenizer& tokenizer, std::span<const Reward> rewards,
    const experience::v1::ScoredGroup& group) {
  const auto has_steps = [](const Reward& reward) {
    return !reward.steps.empty() || !reward.token_rewards.empty();
  };
  std::vector<std::vector<RewardedStep>> found;
  if (std::ranges::none_of(rewards, has_steps)) return found;
  for (int i = 0; i < group.completions_size(); ++i) {
    const auto& ids = group.completions(i).completion().token_ids();
    const Reward& reward = rewards[static_cast<size_t>(i)];
    std::map<int64_t, double> by_end;  // tokens, the step's last included
    for (size_t t = 0; t < reward.token_rewards.size() && t < static_cast<size_t>(ids.size());
         ++t) {
      if (reward.token_rewards[t] != 0)
        by_end[static_cast<int64_t>(t) + 1] += reward.token_rewards[t];
    }
    // Each turn is a step, rewarded or not. Without the last one's end the last rewarded token would
    // be that of the whole rest of the completion.
    if (!reward.token_rewards.empty()) {
      for (const int32_t end : TurnEnds(group.completions(i).completion())) by_end[end] += 0;
    }
    for (const StepReward& step : reward.steps) {
      TANDEM_ASSIGN_OR_RETURN(
          const int64_t end,
          FindToken(tokenizer, {ids.data(), static_cast<size_t>(ids.size())}, step.end_byte));
      by_end[end] += step.value;
    }
    std::vector<RewardedStep>& steps = found.emplace_back();
    for (const auto& [end, value] : by_end) steps.push_back({end, value});
  }
  return found;
}

}  // namespace tandem::trainer
