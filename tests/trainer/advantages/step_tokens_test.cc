#include "trainer/advantages/step_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/experience.pb.h"
#include "tests/support/status_matchers.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::IsOk;

TEST(StepTokens, AStepEndsWithTheTokenThatHoldsItsLastByte) {
  const auto tokenizer =
      Tokenizer::Load(TANDEM_SOURCE_DIR "/tests/testdata/smollm2-tokenizer").value();
  const std::string text = "2 + 3 = 5\n5 + 4 = 9\nThe answer is 9";
  const std::vector<int32_t> ids = tokenizer->Encode(text).value();
  experience::v1::ScoredGroup group;
  for (int i = 0; i < 2; ++i) {
    auto* const completion = group.add_completions()->mutable_completion();
    for (const int32_t id : ids) completion->add_token_ids(id);
    completion->add_token_ids(1 << 20);  // of a padded vocabulary, without text
    completion->add_token_ids(tokenizer->eos_token_id());
  }
  std::vector<Reward> rewards(2);
  const auto first = static_cast<int64_t>(text.find('\n')) + 1;
  const auto second = static_cast<int64_t>(text.rfind('\n')) + 1;
  rewards[0].steps = {{first, 1}, {second, 0.5}, {second, 0.25}};
  const auto found = FindStepTokens(*tokenizer, rewards, group);
  ASSERT_THAT(found, IsOk());
  ASSERT_EQ(found->size(), 2u);
  EXPECT_TRUE((*found)[1].empty());
  const std::vector<RewardedStep>& steps = (*found)[0];
  ASSERT_EQ(steps.size(), 2u) << "two steps that end in one token become one";
  EXPECT_EQ(steps[1].reward, 0.75);
  const auto decoded = [&](int64_t end) {
    return tokenizer->Decode(std::span(ids).first(static_cast<size_t>(end)), false).value();
  };
  EXPECT_EQ(decoded(steps[0].end), text.substr(0, static_cast<size_t>(first)));
  EXPECT_EQ(decoded(steps[1].end), text.substr(0, static_cast<size_t>(second)));
  EXPECT_TRUE(FindStepTokens(*tokenizer, std::vector<Reward>(2), group)->empty());
}

TEST(StepTokens, RewardsOfTokensAreStepsOfOneTokenAndTheLastTokenEndsTheRest) {
  const auto tokenizer =
      Tokenizer::Load(TANDEM_SOURCE_DIR "/tests/testdata/smollm2-tokenizer").value();
  experience::v1::ScoredGroup group;
  auto* const completion = group.add_completions()->mutable_completion();
  for (const int32_t id : {5, 6, 7, 8}) completion->add_token_ids(id);
  std::vector<Reward> rewards(1);
  rewards[0].token_rewards = {0, 0.5, -1, 0};
  const auto found = FindStepTokens(*tokenizer, rewards, group);
  ASSERT_THAT(found, IsOk());
  const std::vector<RewardedStep>& steps = (*found)[0];
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].end, 2);
  EXPECT_EQ(steps[0].reward, 0.5);
  EXPECT_EQ(steps[1].end, 3);
  EXPECT_EQ(steps[1].reward, -1);
  EXPECT_EQ(steps[2].end, 4);
  EXPECT_EQ(steps[2].reward, 0);
}

}  // namespace
}  // namespace tandem::trainer
