#include "trainer/metrics/step_metrics.h"

#include <gtest/gtest.h>

#include <limits>

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;

void AddMember(ScoredGroup* group, double reward, float advantage, int tokens, int64_t version,
               bool truncated = false) {
  auto* const member = group->add_completions();
  member->set_reward(reward);
  member->set_correct(reward == 1);
  member->set_advantage(advantage);
  (*member->mutable_reward_parts())["number_answer"] = reward;
  auto* const completion = member->mutable_completion();
  for (int i = 0; i < tokens; ++i) completion->add_token_ids(i);
  completion->set_finish_reason(truncated ? rollout::v1::FINISH_REASON_LENGTH
                                          : rollout::v1::FINISH_REASON_STOP);
  auto* const span = completion->add_version_spans();
  span->set_weight_version(version);
  span->set_num_tokens(tokens);
}

StepExperience Trained(std::vector<ScoredGroup> groups) { return {.groups = std::move(groups)}; }

std::vector<ScoredGroup> Groups() {
  ScoredGroup mixed, equal;
  AddMember(&mixed, 1, 0.5f, 2, 3);
  AddMember(&mixed, 0, -0.5f, 4, 2, /*truncated=*/true);
  AddMember(&equal, 0, 0, 6, 3);
  AddMember(&equal, 0, 0, 8, 3);
  equal.set_zero_variance(true);
  return {mixed, equal};
}

TEST(StepMetrics, ComeOutAsWorkedByHand) {
  MetricsLine line(4, 0);
  AddGroupMetrics(Trained(Groups()), {3}, &line);
  AddAdvantageMetrics(Groups(), &line);
  EXPECT_DOUBLE_EQ(line.Get("reward/mean"), 0.25);
  EXPECT_DOUBLE_EQ(line.Get("reward/std"), 0.5);  // squares 9/16 + 3/16 over 3
  EXPECT_DOUBLE_EQ(line.Get("reward/pass_at_k"), 0.5);
  EXPECT_NEAR(line.Get("reward/group_std_mean"), 0.70710678 / 2, 1e-7);
  EXPECT_DOUBLE_EQ(line.Get("reward/zero_variance_share"), 0.5);
  EXPECT_DOUBLE_EQ(line.Get("reward/part/number_answer"), 0.25);
  EXPECT_DOUBLE_EQ(line.Get("advantage/mean"), 0);
  EXPECT_DOUBLE_EQ(line.Get("advantage/var"), 0.125);  // (1/4 + 1/4) / 4
  EXPECT_DOUBLE_EQ(line.Get("length/mean"), 5);
  EXPECT_DOUBLE_EQ(line.Get("length/min"), 2);
  EXPECT_DOUBLE_EQ(line.Get("length/max"), 8);
  EXPECT_DOUBLE_EQ(line.Get("length/truncated_share"), 0.25);
  EXPECT_EQ(line.ToJson().find("turns/"), std::string::npos) << "all of one turn";
  EXPECT_DOUBLE_EQ(line.Get("staleness/mean"), 0.2);  // 4 of 20 tokens are one version old
  EXPECT_DOUBLE_EQ(line.Get("staleness/max"), 1);
  EXPECT_NE(line.ToJson().find("\"staleness/histogram\":{\"0\":16,\"1\":4}"), std::string::npos);
  EXPECT_EQ(CountTokens(SampledGroups(Trained(Groups()))), 20);
}

// Tokens 2 to 4 were given between two turns and have no advantage.
TEST(StepMetrics, AdvantagesAreThoseOfTheTokensThatWereDrawn) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  std::vector<ScoredGroup> groups = Groups();
  groups[1].set_group_id(9);  // those of Groups have none
  auto* const completion = groups[1].mutable_completions(0)->mutable_completion();
  for (const int tokens : {2, 3, 1}) {
    auto* const segment = completion->add_segments();
    segment->set_given(tokens == 3);
    segment->set_num_tokens(tokens);
  }
  TakeTrainedAdvantages({{groups[1].group_id(), {{0.5f, 0.5f, kNone, kNone, kNone, 0.5f}}}},
                        &groups);
  EXPECT_EQ(groups[1].completions(0).advantage(), 0.5f);
  EXPECT_EQ(groups[1].completions(0).token_advantages_size(), 0) << "all are equal";
  TakeTrainedAdvantages({{groups[1].group_id(), {{0.5f, 1, kNone, kNone, kNone, 3}}}}, &groups);
  EXPECT_EQ(groups[1].completions(0).advantage(), 1.5f);
  EXPECT_EQ(groups[1].completions(0).token_advantages(5), 3);
}

// The completion of six tokens drew two, was given three and drew one, for which it waited 2 s.
TEST(StepMetrics, CountWhatWasDrawnAndWhatWasGiven) {
  std::vector<ScoredGroup> groups = Groups();
  rollout::v1::Completion* const completion =
      groups[1].mutable_completions(0)->mutable_completion();
  for (const int tokens : {2, 3, 1}) {
    auto* const segment = completion->add_segments();
    segment->set_given(tokens == 3);
    segment->set_num_tokens(tokens);
  }
  completion->mutable_version_spans(0)->set_num_tokens(3);
  completion->set_wait_ms(2000);
  groups[0].mutable_completions(0)->set_drop_reason("environment_failed: it broke");
  MetricsLine line(4, 0);
  AddGroupMetrics(Trained(groups), {3}, &line);
  EXPECT_DOUBLE_EQ(line.Get("turns/mean"), 5.0 / 4);
  EXPECT_DOUBLE_EQ(line.Get("turns/failed"), 1);
  EXPECT_DOUBLE_EQ(line.Get("turns/max"), 2);
  EXPECT_DOUBLE_EQ(line.Get("turns/given_share"), 3.0 / 20);
  EXPECT_DOUBLE_EQ(line.Get("turns/wait_mean"), 0.5);
  EXPECT_DOUBLE_EQ(line.Get("length/mean"), 17.0 / 4);
  EXPECT_EQ(CountTokens(SampledGroups(Trained(groups))), 17);
}

TEST(StepMetrics, OfExternalRewardsCountFailuresAndDisagreements) {
  std::vector<ScoredGroup> groups = Groups();
  groups[0].mutable_completions(1)->set_drop_reason("reward_failed: judge: no score");
  const StepExperience step = Trained(groups);
  MetricsLine line(4, 0), without(4, 0);
  AddExternalRewards({.cache_hits = 3,
                      .judge_calls = 12,
                      .judge_tokens = 340,
                      .pairs = 4,
                      .pair_disagreements = 1,
                      .model_disagreement = 1.5,
                      .model_rewards = 4,
                      .latencies = {3, 1, 2}},
                     SampledGroups(step), &line);
  EXPECT_DOUBLE_EQ(line.Get("reward/model_disagreement"), 0.375);
  EXPECT_DOUBLE_EQ(line.Get("reward/latency_p50"), 2);
  EXPECT_DOUBLE_EQ(line.Get("reward/failed_share"), 0.25);
  EXPECT_DOUBLE_EQ(line.Get("reward/cache_hits"), 3);
  EXPECT_DOUBLE_EQ(line.Get("reward/judge_calls"), 12);
  EXPECT_DOUBLE_EQ(line.Get("reward/judge_tokens"), 340);
  EXPECT_DOUBLE_EQ(line.Get("reward/judge_position_disagreement"), 0.25);
  AddExternalRewards({}, SampledGroups(step), &without);
  EXPECT_EQ(without.scalars().size(), 2u) << "no judge, no latency: only failures and hits";
}

TEST(StepMetrics, HeldOutGoldIsTheMeanOfWhatHasIt) {
  std::vector<ScoredGroup> groups = Groups();
  groups[0].mutable_completions(0)->set_gold(1);
  groups[1].mutable_completions(1)->set_gold(0.5);
  MetricsLine line(4, 0), without(4, 0);
  AddGroupMetrics(Trained(groups), {3}, &line);
  AddGroupMetrics(Trained(Groups()), {3}, &without);
  EXPECT_DOUBLE_EQ(line.Get("reward/gold"), 0.75);
  EXPECT_DOUBLE_EQ(line.Get("reward/mean"), 0.25) << "as without it";
  EXPECT_DOUBLE_EQ(without.Get("reward/gold", -1), -1);
}

// The same groups, one of them dropped: rewards and lengths are those of before.
TEST(StepMetrics, DroppedGroupsCountInRewardsAndLengthsAndNotInAdvantages) {
  const auto groups = Groups();
  const StepExperience step = {.groups = {groups[0]},
                               .dropped = {{1, kZeroVariance, "", groups[1]}, {2, "failed"}}};
  MetricsLine line(4, 0), whole(4, 0);
  AddGroupMetrics(step, {3}, &line);
  AddAdvantageMetrics(step.groups, &line);
  AddGroupMetrics(Trained(groups), {3}, &whole);
  for (const auto& [name, value] : whole.scalars()) {
    if (name.starts_with("reward/") || name.starts_with("length/")) {
      EXPECT_DOUBLE_EQ(line.Get(name, -1), value) << name;
    }
  }
  EXPECT_DOUBLE_EQ(line.Get("reward/zero_variance_share"), 0.5);
  EXPECT_DOUBLE_EQ(line.Get("advantage/var"), 0.25) << "of the trained ones";
  EXPECT_EQ(CountTokens(SampledGroups(step)), 20);
}

// A group without any reward is in no share, and one that is wholly masked is not one of equal
// rewards.
TEST(StepMetrics, GroupsWithNothingToCompareAreNotOnesOfEqualRewards) {
  auto groups = Groups();
  for (auto& member : *groups[1].mutable_completions()) member.set_masked(true);
  MetricsLine masked(4, 0), failed(4, 0);
  AddGroupMetrics({.groups = {groups[0]}, .dropped = {{1, "all_masked", "", groups[1]}}}, {3},
                  &masked);
  EXPECT_DOUBLE_EQ(masked.Get("reward/zero_variance_share"), 0);
  EXPECT_DOUBLE_EQ(masked.Get("reward/pass_at_k"), 0.5);
  for (auto& member : *groups[1].mutable_completions()) member.set_drop_reason("reward_failed: x");
  AddGroupMetrics({.groups = {groups[0]}, .dropped = {{1, "all_masked", "", groups[1]}}}, {3},
                  &failed);
  EXPECT_DOUBLE_EQ(failed.Get("reward/pass_at_k"), 1);
  EXPECT_DOUBLE_EQ(failed.Get("length/mean"), 5);
}

TEST(StepMetrics, PassAtKIsOfCorrectAnswersAndNotOfHighRewards) {
  auto groups = Groups();
  groups[0].mutable_completions(0)->set_reward(0.4);  // correct, and penalised for its length
  groups[1].mutable_completions(0)->set_reward(3);    // wrong, in a good format
  MetricsLine line(4, 0);
  AddGroupMetrics(Trained(groups), {3}, &line);
  EXPECT_DOUBLE_EQ(line.Get("reward/pass_at_k"), 0.5);
  groups[0].mutable_completions(0)->set_correct(false);
  MetricsLine without(4, 0);
  AddGroupMetrics(Trained(groups), {3}, &without);
  EXPECT_DOUBLE_EQ(without.Get("reward/pass_at_k"), 0);
}

TEST(StepMetrics, CountDropsByReason) {
  auto groups = Groups();
  groups[0].mutable_completions(0)->set_masked(true);
  groups[0].mutable_completions(0)->set_drop_reason("reward_failed: gsm8k: no number");
  MetricsLine line(4, 0);
  AddDropMetrics(groups, {{7, "stale"}, {8, "stale"}}, &line);
  EXPECT_DOUBLE_EQ(line.Get("drops/group_stale"), 2);
  EXPECT_DOUBLE_EQ(line.Get("drops/completion_reward_failed"), 1);
}

TEST(StepMetrics, ACompletionWithoutARewardIsNotOneOf0) {
  auto groups = Groups();
  groups[1].mutable_completions(0)->set_masked(true);
  groups[1].mutable_completions(0)->set_drop_reason("reward_failed: subprocess: it timed out");
  groups[1].mutable_completions(1)->set_masked(true);
  groups[1].mutable_completions(1)->set_drop_reason("truncated");  // has one, and is not trained
  MetricsLine line(4, 0);
  AddGroupMetrics(Trained(groups), {3}, &line);
  EXPECT_DOUBLE_EQ(line.Get("reward/mean"), 1.0 / 3);
}

}  // namespace
}  // namespace tandem::trainer
