#include "trainer/rewards/model/reward_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/rewards/model/reward_model_directory.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::unique_ptr<RewardScorer> Load(const RewardModelOptions& options) {
  auto scorer = RewardScorer::Load(options);
  EXPECT_THAT(scorer, IsOk());
  return *std::move(scorer);
}

std::vector<TextToScore> Answers(const std::vector<std::string>& texts) {
  std::vector<TextToScore> answers;
  for (const std::string& text : texts) answers.push_back({.prompt = "2 + 2?", .steps = {text}});
  return answers;
}

TEST(RewardScorer, AGroupInOnePassHasTheRewardsOfItsCompletionsAlone) {
  const TempDir directory;
  WriteRewardModel(directory / "rm", kSequenceTask, 1, 1);
  // Rows of 12 tokens hold one completion or two; the default holds all.
  for (const int64_t batch_tokens : {12, 4096}) {
    const auto scorer = Load({.paths = {directory / "rm"}, .batch_tokens = batch_tokens});
    auto texts = Answers({"4", "it is four", "5"});
    texts.push_back({.prompt = "another prompt", .steps = {"4"}});
    const auto together = scorer->Score(texts);
    ASSERT_THAT(together, SizeIs(4));
    for (size_t i = 0; i < texts.size(); ++i) {
      ASSERT_THAT(together[i], IsOk());
      const auto alone = scorer->Score(std::span(texts).subspan(i, 1));
      EXPECT_NEAR(together[i]->reward, alone[0]->reward, 1e-5) << i;
    }
    EXPECT_NE(together[0]->reward, together[2]->reward);
    EXPECT_NE(together[0]->reward, together[3]->reward) << "the prompt is read";
  }
}

TEST(RewardScorer, AnEnsembleIsTheMeanTheLeastOrTheMeanLessTheDeviationOfItsMembers) {
  const TempDir directory;
  WriteRewardModel(directory / "a", kSequenceTask, 2, 1);
  WriteRewardModel(directory / "b", kSequenceTask, 1, 2);
  RewardModelOptions options = {.paths = {directory / "a", directory / "b"}};
  const auto texts = Answers({"4"});
  const auto mean = *Load(options)->Score(texts)[0];
  ASSERT_THAT(mean.members, SizeIs(3)) << "two heads and a directory";
  EXPECT_NEAR(mean.members[0], Load({.paths = {directory / "a"}})->Score(texts)[0]->members[0],
              1e-6);
  EXPECT_NEAR(mean.members[2], Load({.paths = {directory / "b"}})->Score(texts)[0]->reward, 1e-6);
  const double average = (mean.members[0] + mean.members[1] + mean.members[2]) / 3;
  double squares = 0;
  for (const double member : mean.members) squares += (member - average) * (member - average);
  const double deviation = std::sqrt(squares / 3);
  EXPECT_NEAR(mean.reward, average, 1e-9);
  EXPECT_NEAR(mean.disagreement, deviation, 1e-9);
  options.ensemble = EnsembleAggregation::kMin;
  EXPECT_NEAR(Load(options)->Score(texts)[0]->reward, *std::ranges::min_element(mean.members),
              1e-6);
  options.ensemble = EnsembleAggregation::kMeanMinusStd;
  options.std_weight = 2;
  EXPECT_NEAR(Load(options)->Score(texts)[0]->reward, average - 2 * deviation, 1e-6);
}

TEST(RewardScorer, AProcessModelGivesProbabilitiesOfStepsAndTheirAggregate) {
  const TempDir directory;
  WriteRewardModel(directory / "prm", kTokenTask, 1, 1);
  RewardModelOptions options = {.paths = {directory / "prm"}};
  const std::vector<TextToScore> texts = {{.prompt = "2 + 2?", .steps = {"2 and 2\n", "is 4"}},
                                          {.prompt = "2 + 2?", .steps = {}}};
  const auto least = Load(options)->Score(texts);
  ASSERT_THAT(least[0], IsOk());
  ASSERT_THAT(least[0]->steps, SizeIs(2));
  const double first = least[0]->steps[0], second = least[0]->steps[1];
  EXPECT_GT(first, 0);
  EXPECT_LT(first, 1);
  EXPECT_NEAR(least[0]->reward, std::min(first, second), 1e-12);
  EXPECT_EQ(least[1]->reward, 0) << "no step";
  EXPECT_THAT(least[1]->steps, IsEmpty());
  options.steps = StepAggregation::kProduct;
  EXPECT_NEAR(Load(options)->Score(texts)[0]->reward, first * second, 1e-6);
  options.steps = StepAggregation::kLast;
  EXPECT_NEAR(Load(options)->Score(texts)[0]->reward, second, 1e-6);
}

TEST(RewardScorer, ATruncatedCompletionIsReadAtItsLastTokenAndNotAtAnEndToken) {
  const TempDir directory;
  WriteRewardModel(directory / "rm", kSequenceTask, 1, 1);
  const auto scorer = Load({.paths = {directory / "rm"}});
  const std::vector<int32_t> prompt = *scorer->tokenizer().Encode("2 + 2?");
  std::vector<int32_t> ids = *scorer->tokenizer().Encode("4, I");
  const TextToScore cut = {.prompt = "2 + 2?", .steps = {"4, I"}, .is_truncated = true};
  const TextToScore whole = {.prompt = "2 + 2?", .steps = {"4, I"}};
  const TextToScore as_ids = {.prompt_ids = prompt, .completion_ids = ids};
  ids.push_back(2);  // the end token of the tiny model
  const TextToScore with_end = {.prompt_ids = prompt, .completion_ids = ids};
  const auto reward = [&](const TextToScore& text) {
    return scorer->Score(std::span(&text, 1))[0]->reward;
  };
  EXPECT_NEAR(reward(cut), reward(as_ids), 1e-6);
  EXPECT_NEAR(reward(whole), reward(with_end), 1e-6);
  EXPECT_NE(reward(cut), reward(whole));
}

TEST(RewardScorer, WhatCannotBeScoredFailsAloneAndSaysWhy) {
  const TempDir directory;
  WriteRewardModel(directory / "rm", kSequenceTask, 1, 1);
  const auto scorer = Load({.paths = {directory / "rm"}});
  std::string longer;
  for (int i = 0; i < 300; ++i) longer += "word ";
  auto texts = Answers({"4", longer, "5"});
  texts.push_back({.prompt = "", .steps = {"4"}});
  texts.push_back({.prompt_ids = {1}, .completion_ids = {49152}});
  const auto rewards = scorer->Score(texts);
  EXPECT_THAT(rewards[0], IsOk());
  EXPECT_THAT(rewards[1].status(), FailsWith(absl::StatusCode::kInvalidArgument,
                                             "are over the context of 256 of the reward model"));
  EXPECT_THAT(rewards[2], IsOk());
  EXPECT_NEAR(rewards[2]->reward, scorer->Score(Answers({"5"}))[0]->reward, 1e-5);
  EXPECT_THAT(rewards[3].status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "the prompt has no tokens"));
  EXPECT_THAT(rewards[4].status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "id 49152 is outside of"));
}

TEST(RewardScorer, RefusesWhatIsNoRewardModelAndMixedKinds) {
  const TempDir directory;
  EXPECT_THAT(RewardScorer::Load({.paths = {directory / "none"}}).status(),
              FailsWith(absl::StatusCode::kNotFound, "none"));
  EXPECT_THAT(RewardScorer::Load({}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "reward.model.paths is empty"));
  WriteRewardModel(directory / "rm", kSequenceTask, 1, 1);
  WriteRewardModel(directory / "prm", kTokenTask, 1, 1);
  EXPECT_THAT(RewardScorer::Load({.paths = {directory / "rm", directory / "prm"}}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "an ensemble has models of one kind"));
  ASSERT_THAT(MakeDirectories(directory / "lm"), IsOk());
  ASSERT_THAT(
      testing::WriteTinyModel(directory / "lm", TANDEM_SOURCE_DIR, testing::TinyModelConfig(), 1),
      IsOk());
  EXPECT_THAT(RewardScorer::Load({.paths = {directory / "lm"}}).status(),
              FailsWith(absl::StatusCode::kInvalidArgument, "it is no reward model"));
}

}  // namespace
}  // namespace tandem::trainer
