// ScoreGroup: what came back from a server becomes experience (stage 3): rewards, the policy for
// truncated completions, and, over the members that are left, advantages. Used by trainer.cc.
#pragma once

#include <vector>

#include "proto/experience.pb.h"
#include "trainer/experience/advantages.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {

// Fills reward, reward_parts, masked, drop_reason, advantage and zero_variance. Masked members get
// advantage 0 and do not enter the group's mean or deviation. Rewards are of Completion.text as the
// server gave it: never of re-tokenised or otherwise re-made text.
void ScoreGroup(RewardFunction& rewards, const AdvantageOptions& advantages,
                experience::v1::ScoredGroup* group);

}  // namespace tandem::trainer
