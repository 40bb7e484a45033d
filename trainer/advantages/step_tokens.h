// StepTokens: from the parts of a text that a reward names by bytes to the tokens that made them.
// Pure. Used by trainer.cc between a reward's answer and ScoreGroup.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "trainer/advantages/group_advantages.h"

namespace tandem::experience::v1 {
class ScoredGroup;
}

namespace tandem::trainer {

// Per completion of the group, the steps of its reward: a step ends with the token whose text holds
// its last byte. Steps that end in the same token become one, with the sum of their rewards. Empty
// where rewards[i] has none; no elements where no reward has any. A baseline has no steps.
//   INVALID_ARGUMENT  a completion has a negative id
absl::StatusOr<std::vector<std::vector<RewardedStep>>> FindStepTokens(
    const Tokenizer& tokenizer, std::span<const Reward> rewards,
    const experience::v1::ScoredGroup& group);

}  // namespace tandem::trainer
