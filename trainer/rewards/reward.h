// What is rewarded and what a reward is (stage 3): plain values that the components (rewards.h),
// external scorers (external/) and the trainer's loop share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/environments/episode.h"

namespace tandem::trainer {

struct RewardInput {
  std::string_view text;               // of the completion, without the stop token
  std::string_view answer;             // ground truth
  std::string_view prompt;             // as rendered
  std::string_view source_json;        // the prompt's line
  int64_t num_tokens = 0;              // of the completion, stop token included
  bool truncated = false;              // ended by length
  std::span<const int32_t> token_ids;  // of the completion, or empty where the caller has none
  // Train step that the run is at when it asks, and how many it has; 0 outside of a run.
  int64_t step = 0, num_steps = 0;
  // The text of the last turn, where there are several: it has the answer, and the rest of `text`
  // may be what a tool said.
  std::optional<std::string_view> last_turn;
  std::shared_ptr<const Episode> episode;  // null: no environment played it

  std::string_view answering_text() const { return last_turn.value_or(text); }
};

// A reward of a part of the completion's text, as process rewards are.
struct StepReward {
  int64_t end_byte = 0;  // where the part ends in RewardInput::text, exclusive; in rising order
  double value = 0;
};

struct Reward {
  double value = 0;                   // of the completion as a whole, without `steps`
  std::vector<StepReward> steps;      // added to it; empty for most rewards
  std::vector<double> token_rewards;  // [num_tokens], added to it; empty for most rewards
  // Is the answer right? The weighted sum of the components that judge the answer reaches
  // pass_threshold. What shapes the reward beside it (format, length_penalty, repetition,
  // diversity, a learned model, truncation, normalisation) does not count. Where no component with
  // a weight judges the answer, those of reward.gold that do decide, and without them format.
  bool correct = false;
  std::vector<std::pair<std::string, double>> parts;  // before normalisation and weights
  // The sum of the components of reward.gold, which `value` has no part in; none where there is
  // none of them, or where one failed.
  std::optional<double> gold;
  std::vector<std::pair<std::string, std::string>> notes;  // of scorers, for people (log_extra)
  // Not empty: do not train on it ("truncated", "reward_failed: ...", "environment_failed: ...",
  // kNoRewardApplies).
  std::string mask_reason;
};

// Every component left the completion out: without a reward it is no part of its group's mean.
inline constexpr std::string_view kNoRewardApplies = "reward_none";

// What the reason begins with where an environment could not play a completion to its end.
inline constexpr std::string_view kEnvironmentFailed = "environment_failed";

// Whether a completion masked for `mask_reason` has no reward.
inline bool IsRewardFailure(std::string_view reason) {
  return reason.starts_with("reward_failed") || reason.starts_with(kEnvironmentFailed) ||
         reason == kNoRewardApplies;
}

}  // namespace tandem::trainer
