#include "trainer/rollouts/server_scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rpc/refusal.h"
#include "tests/support/fake_rollout_server.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/scored_groups.h"
#include "trainer/rollouts/call_end.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::FailsWith;
using ::tandem::testing::FakeRolloutServer;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::IsOk;
using ::tandem::testing::ScoredGroup;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ServerScorer, GivesTheLogProbsOfCompletionsWithoutTheirPrompts) {
  FakeRolloutServer server;
  server.set_score([](int64_t, int t) { return -1.0f - static_cast<float>(t); });
  ScoredGroup group = GroupWithPrompt(1, {7, 8});
  AddCompletion(group, {3, 4, 5}, 1);
  AddCompletion(group, {6}, 1)->set_masked(true);
  AddCompletion(group, {9}, 1);
  const ServerPool pool({server.address()});
  const ServerScorer scorer(&pool, 30);
  rollout::v1::ScoreRequest how;
  how.set_run_id("r");
  how.set_as_served(true);
  how.set_temperature(0.5f);
  const auto results = scorer.ScoreEach({{0, {&group}}}, how);
  ASSERT_THAT(results[0], IsOk());
  EXPECT_EQ(results[0]->version, 0);
  ASSERT_EQ(results[0]->logprobs.size(), 1u);
  EXPECT_THAT(results[0]->logprobs[0][0], ElementsAre(-1, -2, -3));
  EXPECT_THAT(results[0]->logprobs[0][1], IsEmpty()) << "masked";
  EXPECT_THAT(results[0]->logprobs[0][2], ElementsAre(-1));
  const auto asked = server.score_requests();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].run_id(), "r");
  EXPECT_TRUE(asked[0].as_served());
  EXPECT_EQ(asked[0].temperature(), 0.5f);
  EXPECT_THAT(asked[0].sequences(0).token_ids(), ElementsAre(7, 8, 3, 4, 5));
  EXPECT_EQ(asked[0].sequences(0).num_prompt_tokens(), 2);
}

TEST(ServerScorer, CallsAreOfBoundedSize) {
  FakeRolloutServer server;
  ScoredGroup group = GroupWithPrompt(1, {7});
  for (int i = 0; i < 5; ++i) AddCompletion(group, std::vector<int32_t>(8191, i), 1);
  const ServerPool pool({server.address()});
  const auto results = ServerScorer(&pool, 30).ScoreEach({{0, {&group}}}, {});
  ASSERT_THAT(results[0], IsOk());
  EXPECT_EQ(results[0]->logprobs[0][4].size(), 8191u);
  EXPECT_EQ(server.score_requests().size(), 3u) << "16384 tokens a call";
}

TEST(ServerScorer, AServerThatDoesNotAnswerIsNamedAndTheOthersCount) {
  FakeRolloutServer alive, dead;
  const std::string address = dead.address();
  dead.Stop();
  ScoredGroup group = GroupWithPrompt(1, {7});
  AddCompletion(group, {3}, 1);
  const ServerPool pool({address, alive.address()});
  const auto results = ServerScorer(&pool, 30).ScoreEach({{0, {&group}}, {1, {&group}}}, {});
  EXPECT_THAT(results[0], FailsWith(absl::StatusCode::kUnavailable, address));
  EXPECT_THAT(results[1], IsOk());
}

absl::Status RefusedBy(rpc::Refusal refusal) {
  return rpc::Refused(refusal, absl::ResourceExhaustedError("no room"));
}

// One completion scored by `server`.
absl::StatusOr<ScoredByServer> ScoreOne(const FakeRolloutServer& server) {
  ScoredGroup group = GroupWithPrompt(1, {7});
  AddCompletion(group, {3}, 1);
  const ServerPool pool({server.address()});
  return ServerScorer(&pool, 30).ScoreEach({{0, {&group}}}, {})[0];
}

TEST(ServerScorer, ABusyServerIsAskedAgain) {
  FakeRolloutServer server;
  server.FailNextScores(
      {RefusedBy(rpc::Refusal::kQueueFull), RefusedBy(rpc::Refusal::kMemoryFull)});
  EXPECT_THAT(ScoreOne(server), IsOk());
  EXPECT_EQ(server.score_requests().size(), 3u);
}

TEST(ServerScorer, AServerThatIsBusyForLongerThanACallMayTakeIsGivenUpByName) {
  FakeRolloutServer server;
  server.set_retry_after_ms(31'000);
  server.FailNextScores({RefusedBy(rpc::Refusal::kQueueFull)});
  const absl::Status status = ScoreOne(server).status();
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kResourceExhausted, server.address()));
  EXPECT_EQ(rpc::RefusalOf(status), rpc::Refusal::kQueueFull);
  EXPECT_TRUE(ServerIsFine(status));
  EXPECT_EQ(server.score_requests().size(), 1u);
}

TEST(ServerScorer, WhatIsTooLargeIsGivenUpAtOnce) {
  FakeRolloutServer server;
  server.FailNextScores({RefusedBy(rpc::Refusal::kTooLarge)});
  const absl::Status status = ScoreOne(server).status();
  EXPECT_EQ(rpc::RefusalOf(status), rpc::Refusal::kTooLarge);
  EXPECT_TRUE(IsImpossible(status));
  EXPECT_TRUE(ServerIsFine(status));
  EXPECT_EQ(server.score_requests().size(), 1u);
}

TEST(ServerScorer, AServerThatIsGoneOrHangsIsNotTakenForABusyOne) {
  FakeRolloutServer server;
  for (const absl::Status& failure :
       {absl::UnavailableError("draining"), absl::DeadlineExceededError("not in time"),
        absl::InternalError("the engine failed")}) {
    server.FailNextScores({failure});
    const absl::Status status = ScoreOne(server).status();
    EXPECT_EQ(status.code(), failure.code());
    EXPECT_FALSE(ServerIsFine(status));
    EXPECT_FALSE(IsImpossible(status));
  }
  EXPECT_EQ(server.score_requests().size(), 3u);
}

}  // namespace
}  // namespace tandem::trainer
