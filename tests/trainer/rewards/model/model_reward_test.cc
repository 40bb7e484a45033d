// The component `model` of a reward, in this process and over gRPC.
#include "trainer/rewards/model/model_reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/trainer/rewards/held_completions.h"
#include "tests/trainer/rewards/model/reward_model_directory.h"
#include "trainer/rewards/model/reward_service.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ModelRewardTest : public ::testing::Test {
 protected:
  std::unique_ptr<RewardFunction> Rewards() {
    options_.weights = {{"model", 2}};
    std::shared_ptr<RewardScorer> scorer = *RewardScorer::Load(options_.model);
    return *RewardFunction::Create(options_, AskModel(scorer));
  }

  TempDir directory_;
  RewardOptions options_;
};

TEST_F(ModelRewardTest, ACompletionGetsTheWeightedRewardOfTheModelAndTheTallyItsDisagreement) {
  WriteRewardModel(directory_ / "rm", kSequenceTask, 2, 1);
  options_.model.paths = {directory_ / "rm"};
  const auto rewards = Rewards();
  const auto scored = rewards->Score(HeldCompletions({"42", "43"})->inputs());
  const auto scorer = *RewardScorer::Load(options_.model);
  const std::vector<TextToScore> texts = {{.prompt = "What?", .steps = {"42"}},
                                          {.prompt = "What?", .steps = {"43"}}};
  const auto want = scorer->Score(texts);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_THAT(scored[i].mask_reason, IsEmpty());
    EXPECT_NEAR(scored[i].value, 2 * want[i]->reward, 1e-5);
    EXPECT_FALSE(scored[i].correct) << "a learned reward does not say whether the answer is right";
  }
  const RewardNumbers numbers = rewards->tally()->TakeNumbers();
  EXPECT_EQ(numbers.model_rewards, 2);
  EXPECT_NEAR(numbers.model_disagreement, want[0]->disagreement + want[1]->disagreement, 1e-5);
}

TEST_F(ModelRewardTest, EachStepOfAProcessModelIsARewardAtTheByteWhereItEnds) {
  WriteRewardModel(directory_ / "prm", kTokenTask, 1, 1);
  options_.model = {.paths = {directory_ / "prm"}, .each_step = true};
  const auto scored = Rewards()->Score(HeldCompletions({"40 + 2\n42", ""})->inputs());
  ASSERT_THAT(scored[0].steps, SizeIs(2)) << scored[0].mask_reason;
  EXPECT_EQ(scored[0].steps[0].end_byte, 7);
  EXPECT_EQ(scored[0].steps[1].end_byte, 9);
  EXPECT_EQ(scored[0].value, 0) << "the steps are the reward";
  EXPECT_GT(scored[0].steps[0].value, 0);
  EXPECT_LT(scored[0].steps[0].value, 2) << "a probability times the weight";
  EXPECT_EQ(scored[1].value, 0);
  EXPECT_THAT(scored[1].mask_reason, IsEmpty());
  options_.model.each_step = false;
  const auto least = Rewards()->Score(HeldCompletions({"40 + 2\n42"})->inputs());
  EXPECT_THAT(least[0].steps, IsEmpty());
  EXPECT_NEAR(least[0].value, std::min(scored[0].steps[0].value, scored[0].steps[1].value), 1e-5);
}

TEST_F(ModelRewardTest, ACompletionOverTheContextIsMasked) {
  WriteRewardModel(directory_ / "rm", kSequenceTask, 1, 1);
  options_.model.paths = {directory_ / "rm"};
  std::string longer;
  for (int i = 0; i < 300; ++i) longer += "word ";
  const auto scored = Rewards()->Score(HeldCompletions({"42", longer})->inputs());
  EXPECT_THAT(scored[0].mask_reason, IsEmpty());
  EXPECT_THAT(scored[1].mask_reason, HasSubstr("reward_failed: model: "));
  EXPECT_THAT(scored[1].mask_reason, HasSubstr("over the context of 256"));
}

TEST_F(ModelRewardTest, AServiceGivesTheRewardsOfTheModelInTheProcess) {
  WriteRewardModel(directory_ / "prm", kTokenTask, 1, 1);
  options_.model = {.paths = {directory_ / "prm"}, .each_step = true};
  const auto here = Rewards();
  const auto server = RewardModelServer::Start(*RewardScorer::Load(options_.model), "127.0.0.1:0");
  ASSERT_THAT(server, IsOk());
  RewardOptions remote;
  remote.weights = {{"grpc", 2}};
  remote.grpc.address = (*server)->address();
  const auto there = *RewardFunction::Create(remote);
  const std::vector<std::string> texts = {"40 + 2\n42", "41\n", "x"};
  const auto mine = here->Score(HeldCompletions(texts)->inputs());
  const auto theirs = there->Score(HeldCompletions(texts)->inputs());
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_THAT(theirs[i].mask_reason, IsEmpty());
    ASSERT_EQ(theirs[i].steps.size(), mine[i].steps.size());
    for (size_t s = 0; s < mine[i].steps.size(); ++s) {
      EXPECT_EQ(theirs[i].steps[s].end_byte, mine[i].steps[s].end_byte);
      EXPECT_NEAR(theirs[i].steps[s].value, mine[i].steps[s].value, 1e-5);
    }
  }
  EXPECT_THAT(
      RewardModelServer::Start(*RewardScorer::Load(options_.model), (*server)->address()).status(),
      FailsWith(absl::StatusCode::kUnavailable, "cannot listen on"));
}

}  // namespace
}  // namespace tandem::trainer
