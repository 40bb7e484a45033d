#include "trainer/advantages/group_advantages.h"

#include <gtest/gtest.h>

#include "proto/experience.pb.h"
#include "tests/support/status_matchers.h"
#include "trainer/experience/group_check.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;
using ::tandem::testing::IsOk;

ScoredGroup Group(const std::vector<std::string>& texts) {
  ScoredGroup group;
  group.mutable_prompt()->set_answer("12");
  for (const std::string& text : texts) {
    auto* const completion = group.add_completions()->mutable_completion();
    completion->set_text(text);
    completion->add_token_ids(1);
    completion->set_finish_reason(text == "cut" ? rollout::v1::FINISH_REASON_LENGTH
                                                : rollout::v1::FINISH_REASON_STOP);
  }
  return group;
}

std::unique_ptr<RewardFunction> Rewards(TruncatedPolicy truncated) {
  RewardOptions options;
  options.weights = {{"last_number", 1}};
  options.truncated = truncated;
  auto rewards = RewardFunction::Create(options);
  EXPECT_THAT(rewards, IsOk());
  return *std::move(rewards);
}

void Score(TruncatedPolicy truncated, ScoredGroup* group) {
  EXPECT_THAT(ScoreGroup(Rewards(truncated)->Score(MakeRewardInputs(*group)), {}, {}, group),
              IsOk());
}

TEST(Bug37AdvantageBeforeFiltering, AMaskedMemberDoesNotMoveTheGroupsMean) {
  ScoredGroup with = Group({"12", "3", "cut", "cut"});
  ScoredGroup without = Group({"12", "3"});
  const AdvantageOptions mean_only = {.kind = AdvantageKind::kMeanOnly};
  const auto rewards = Rewards(TruncatedPolicy::kMask);
  EXPECT_THAT(ScoreGroup(rewards->Score(MakeRewardInputs(with)), {}, mean_only, &with), IsOk());
  EXPECT_THAT(ScoreGroup(rewards->Score(MakeRewardInputs(without)), {}, mean_only, &without),
              IsOk());
  EXPECT_FLOAT_EQ(with.completions(0).advantage(), 0.5f);
  EXPECT_FLOAT_EQ(with.completions(1).advantage(), -0.5f);
  EXPECT_FLOAT_EQ(with.completions(0).advantage(), without.completions(0).advantage());
  EXPECT_TRUE(with.completions(2).masked());
  EXPECT_EQ(with.completions(2).drop_reason(), "truncated");
  EXPECT_FLOAT_EQ(with.completions(2).advantage(), 0);
}

TEST(Bug04ZeroVarianceGroups, AreMarkedOverTheMembersThatCount) {
  ScoredGroup group = Group({"12", "12", "cut"});
  Score(TruncatedPolicy::kMask, &group);
  EXPECT_TRUE(group.zero_variance());
  group = Group({"12", "12", "cut"});
  Score(TruncatedPolicy::kZero, &group);
  EXPECT_FALSE(group.zero_variance());
}

TEST(Bug38RewardText, TheServersTextIsScoredAsItIs) {
  ScoredGroup group = Group({"<|im_end|> 12", "12"});
  Score(TruncatedPolicy::kKeep, &group);
  EXPECT_DOUBLE_EQ(group.completions(0).reward(), 1);
  EXPECT_EQ(group.completions(0).completion().text(), "<|im_end|> 12");
  EXPECT_DOUBLE_EQ(group.completions(0).reward_parts().at("last_number"), 1);
}

}  // namespace
}  // namespace tandem::trainer
