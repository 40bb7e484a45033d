#include "trainer/experience/score_group.h"

#include <cstddef>

#include "trainer/experience/group_check.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredCompletion;
using experience::v1::ScoredGroup;

void SetRewards(RewardFunction& rewards, ScoredGroup* group) {
  std::vector<RewardInput> inputs;
  for (const ScoredCompletion& member : group->completions()) {
    inputs.push_back({.text = member.completion().text(),
                      .answer = group->prompt().answer(),
                      .prompt = group->prompt().text(),
                      .source_json = group->prompt().source_json(),
                      .num_tokens = member.completion().token_ids_size(),
                      .truncated = IsTruncated(member.completion())});
  }
  const std::vector<Reward> scored = rewards.Score(inputs);
  for (size_t i = 0; i < scored.size(); ++i) {
    ScoredCompletion* const member = group->mutable_completions(static_cast<int>(i));
    member->set_reward(scored[i].value);
    member->set_correct(scored[i].correct);
    member->set_masked(!scored[i].mask_reason.empty());
    member->set_drop_reason(scored[i].mask_reason);
    for (const auto& [name, value] : scored[i].parts)
      (*member->mutable_reward_parts())[name] = value;
  }
}

}  // namespace

void ScoreGroup(RewardFunction& rewards, const AdvantageOptions& options, ScoredGroup* group) {
  SetRewards(rewards, group);
  std::vector<double> counted;
  for (const ScoredCompletion& member : group->completions()) {
    if (!member.masked()) counted.push_back(member.reward());
  }
  const std::vector<float> advantages = ComputeAdvantages(counted, options);
  group->set_zero_variance(AllEqual(counted));
  size_t next = 0;
  for (ScoredCompletion& member : *group->mutable_completions()) {
    member.set_advantage(member.masked() ? 0 : advantages[next++]);
  }
}

}  // namespace tandem::trainer
