// Rewards of completions that an environment played: the component `environment`, its numbers and
// failures, and which text the other components look at.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "trainer/rewards/external/reward_question.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

RewardInput Played(Episode episode) {
  return {.text = "5\nuser\nhigher\n7",
          .answer = "7",
          .source_json = "{}",
          .num_tokens = 6,
          .last_turn = "7",
          .episode = std::make_shared<Episode>(std::move(episode))};
}

Reward Score(const std::string& component, const RewardInput& input) {
  RewardOptions options;
  options.weights = {{component, 2.0}};
  const auto rewards = RewardFunction::Create(options);
  EXPECT_THAT(rewards, IsOk());
  return (*rewards)->Score({input})[0];
}

TEST(EpisodeReward, TheComponentIsTheSumOfTheTurns) {
  const Reward reward = Score(
      "environment",
      Played({.turn_rewards = {0.25, 0, 1}, .turn_ends = {2, 4, 6}, .info = {{"guesses", 3}}}));
  EXPECT_DOUBLE_EQ(reward.value, 2.5);
  EXPECT_THAT(reward.token_rewards, IsEmpty());
  EXPECT_TRUE(reward.correct) << "2.5 reaches the pass_threshold 1";
  EXPECT_THAT(reward.parts, ElementsAre(Pair("environment", 1.25), Pair("environment/guesses", 3)));
}

TEST(EpisodeReward, OrEachRewardBelongsToTheLastTokenOfItsTurn) {
  const Reward reward =
      Score("environment",
            Played({.turn_rewards = {0.25, 0, 1}, .is_per_turn = true, .turn_ends = {2, 4, 6}}));
  EXPECT_DOUBLE_EQ(reward.value, 0);
  EXPECT_THAT(reward.token_rewards, ElementsAre(0, 0.5, 0, 0, 0, 2));
}

TEST(EpisodeReward, AnEnvironmentThatFailedMasksWhateverTheOtherComponentsSay) {
  const Episode failed = {.failure = absl::AbortedError("ValueError: it broke (env.py:3)"),
                          .turn_rewards = {1},
                          .turn_ends = {6}};
  for (const char* const component : {"environment", "number_answer"}) {
    const Reward reward = Score(component, Played(failed));
    EXPECT_EQ(reward.mask_reason, "environment_failed: ValueError: it broke (env.py:3)");
    EXPECT_TRUE(IsRewardFailure(reward.mask_reason)) << "it is no part of its group's mean";
    EXPECT_FALSE(reward.correct);
  }
}

TEST(EpisodeReward, WithoutAnEnvironmentTheComponentFails) {
  const Reward reward = Score("environment", {.text = "7", .source_json = "{}"});
  EXPECT_EQ(reward.mask_reason,
            "reward_failed: environment: no environment played this completion "
            "(trainer.environment)");
}

TEST(EpisodeReward, TheAnswerIsLookedForInTheLastTurnAlone) {
  RewardInput input = Played({});
  input.last_turn = "I do not know";
  input.text = "call\ntool\n7\nI do not know";
  for (const char* const component : {"number_answer", "last_number", "any_number", "gsm8k"}) {
    EXPECT_DOUBLE_EQ(Score(component, input).value, 0) << component << ": a tool said it";
  }
  input.last_turn = "7";
  EXPECT_DOUBLE_EQ(Score("exact_match", input).value, 2);
  EXPECT_DOUBLE_EQ(Score("number_answer", input).value, 2);
}

TEST(EpisodeReward, TheLastTurnOutlivesItsMessage) {
  std::string text = "the last turn, which is long enough to be of its own";
  RewardInput input = {.text = "all", .last_turn = text};
  const HeldGroup held(std::vector{input});
  text.assign(text.size(), '!');
  EXPECT_EQ(held.inputs()[0].answering_text(),
            "the last turn, which is long enough to be of its own");
}

}  // namespace
}  // namespace tandem::trainer
