#include "trainer/rollouts/rollout_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "common/rpc/refusal.h"
#include "tests/support/fake_rollout_server.h"
#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::tandem::testing::FailsWith;
using ::tandem::testing::FakeRolloutServer;
using ::tandem::testing::IsOk;

rollout::v1::GenerateGroupRequest Request(int64_t group_id) {
  rollout::v1::GenerateGroupRequest request;
  request.set_run_id("run");
  request.set_group_id(group_id);
  request.add_prompt_token_ids(1);
  request.set_num_completions(3);
  request.mutable_sampling()->set_max_new_tokens(8);
  request.mutable_sampling()->set_seed(static_cast<uint64_t>(100 * group_id));
  return request;
}

class RolloutClientTest : public ::testing::Test {
 protected:
  void Connect(const std::vector<std::string>& addresses, RolloutClientOptions options = {}) {
    options.groups_in_flight = 2;
    options.retry_initial_seconds = first_wait_seconds_;
    options.retry_max_seconds = longest_wait_seconds_;
    Start(addresses, options);
    size_t reachable = 0;
    while (reachable < addresses.size()) reachable = client_->Behind(seconds(10)).size();
    for (int i = 0; i < client_->num_servers(); ++i) client_->MarkReady(i, 0, 0);
  }

  void Start(const std::vector<std::string>& addresses, const RolloutClientOptions& options) {
    client_.reset();
    pool_ = std::make_unique<ServerPool>(addresses);
    client_ = std::make_unique<RolloutClient>(pool_.get(), "run", options);
  }

  // The next group, waiting as long as a healthy test can need.
  FinishedGroup Next() {
    const auto group = client_->Next(seconds(20));
    EXPECT_THAT(group, IsOk());
    return group.ok() && group->has_value() ? **group : FinishedGroup{.group_id = -1};
  }

  void MarkBehindReady() {
    for (const int server : client_->Behind(seconds(10))) client_->MarkReady(server, 0, 0);
  }

  double first_wait_seconds_ = 0.01, longest_wait_seconds_ = 0.05;
  FakeRolloutServer server_, other_;
  std::unique_ptr<ServerPool> pool_;
  std::unique_ptr<RolloutClient> client_;
};

TEST_F(RolloutClientTest, BringsEveryGroupBackWhole) {
  Connect({server_.address()});
  for (int64_t id = 0; id < 7; ++id) client_->Submit(Request(id));
  std::set<int64_t> ids;
  for (int i = 0; i < 7; ++i) {
    const FinishedGroup group = Next();
    ASSERT_THAT(group.status, IsOk());
    ASSERT_EQ(group.completions.size(), 3u);
    EXPECT_EQ(group.completions[2].index(), 2);
    ids.insert(group.group_id);
  }
  EXPECT_EQ(ids.size(), 7u);
  EXPECT_EQ(server_.requests().size(), 7u);
}

TEST_F(RolloutClientTest, AGreedyBaselineComesBesideTheMembersAndIsNone) {
  Connect({server_.address()});
  rollout::v1::GenerateGroupRequest request = Request(1);
  request.set_greedy_baseline(true);
  client_->Submit(request);
  const FinishedGroup group = Next();
  ASSERT_THAT(group.status, IsOk());
  ASSERT_EQ(group.completions.size(), 3u);
  for (const auto& member : group.completions) EXPECT_FALSE(member.greedy());
  ASSERT_TRUE(group.baseline.has_value());
  EXPECT_TRUE(group.baseline->greedy());
  EXPECT_EQ(group.baseline->index(), 3);
}

TEST_F(RolloutClientTest, AsksAgainWithTheSameIdAndSeedWhenACallBreaks) {
  Connect({server_.address()});
  server_.FailNextGroups({absl::AbortedError("a commit ended it"), absl::AbortedError("again")});
  client_->Submit(Request(4));
  const FinishedGroup group = Next();
  EXPECT_THAT(group.status, IsOk());
  const auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 3u);
  for (const auto& request : requests) {
    EXPECT_EQ(request.group_id(), 4);
    EXPECT_EQ(request.sampling().seed(), 400u);
  }
  EXPECT_EQ(client_->queues().retries, 2);
}

absl::Status Refusal(rpc::Refusal refusal) {
  return rpc::Refused(refusal, absl::ResourceExhaustedError("no room"));
}

TEST_F(RolloutClientTest, ABusyServerIsWaitedForAndCostsTheGroupNoAttempt) {
  Connect({server_.address()}, {.max_attempts = 2});
  std::deque<absl::Status> failures;
  for (const rpc::Refusal refusal :
       {rpc::Refusal::kQueueFull, rpc::Refusal::kDeadlineBeforeStart, rpc::Refusal::kMemoryFull}) {
    failures.insert(failures.end(), 5, Refusal(refusal));
  }
  failures.push_back(absl::AbortedError("one attempt"));
  server_.FailNextGroups(failures);
  client_->TakeEvents();
  rollout::v1::GenerateGroupRequest request = Request(1);
  request.mutable_admission_batch()->set_num_groups(1);
  client_->Submit(request);
  EXPECT_THAT(Next().status, IsOk());
  EXPECT_TRUE(client_->IsReady(0));
  EXPECT_TRUE(client_->TakeEvents().empty()) << "the server was never lost";
  EXPECT_EQ(client_->queues().retries, 1);
  const auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 17u);
  EXPECT_TRUE(requests.back().has_admission_batch()) << "it still waits for its batch";
}

TEST_F(RolloutClientTest, WhatIsTooLargeIsGivenUpAtOnceWithTheServersWords) {
  Connect({server_.address()});
  server_.FailNextGroups({Refusal(rpc::Refusal::kTooLarge)});
  client_->Submit(Request(1));
  EXPECT_THAT(Next().status, FailsWith(absl::StatusCode::kResourceExhausted, "no room"));
  EXPECT_EQ(server_.requests().size(), 1u);
  EXPECT_TRUE(client_->IsReady(0));
}

TEST_F(RolloutClientTest, AnAnswerOverTheLargestMessageIsAskedForMaxAttemptsTimesAndNoMore) {
  Connect({server_.address()}, {.max_attempts = 2});
  server_.set_sample([](const auto&, rollout::v1::Completion* completion) {
    completion->add_token_ids(1);
    completion->set_text(std::string(rpc::kMaxMessageBytes, 'x'));
  });
  client_->Submit(Request(1));
  EXPECT_THAT(Next().status, FailsWith(absl::StatusCode::kResourceExhausted, "larger than max"));
  EXPECT_EQ(server_.requests().size(), 2u);
  EXPECT_TRUE(client_->IsReady(0));
}

TEST_F(RolloutClientTest, ATimeoutOverTheServersMaximumEndsTheRunWithBothOptionsNamed) {
  Start({server_.address()}, {.call_timeout_seconds = 3601});
  client_->Behind(seconds(10));
  EXPECT_THAT(client_->Health(), FailsWith(absl::StatusCode::kInvalidArgument,
                                           "at most 3600 s (server.max_deadline_seconds), and "
                                           "trainer.client.call_timeout_seconds is 3601"));
}

TEST_F(RolloutClientTest, UnavailableTakesAServerOutUntilItIsProvenAgain) {
  Connect({server_.address()});
  client_->TakeEvents();
  server_.FailNextGroups({absl::UnavailableError("draining")});
  client_->Submit(Request(1));
  MarkBehindReady();
  EXPECT_THAT(Next().status, IsOk());
  const auto events = client_->TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, "server_lost");
  EXPECT_EQ(events[1].kind, "server_back");
}

// A server whose claim is refused answers every probe: without a wait each turn of the loop would
// add two events for as long as another run's lease lasts.
TEST_F(RolloutClientTest, AServerThatAnswersAndCannotBeUsedIsProbedAfterAWait) {
  first_wait_seconds_ = longest_wait_seconds_ = 1e6;
  Connect({server_.address()});
  server_.FailNextGroups({absl::UnavailableError("draining")});
  client_->Submit(Request(1));
  ASSERT_EQ(client_->Behind(seconds(60)).size(), 1u) << "a lost server is probed at once";
  client_->MarkLost(0, "the claim was refused");
  EXPECT_TRUE(client_->Behind(milliseconds(50)).empty());
}

// What its threads say of a server whose engine hangs: its weights are proven, and no group ends.
TEST_F(RolloutClientTest, AServerWhoseEngineHangsIsNotReadmittedUntilItMoves) {
  Connect({server_.address(), other_.address()});
  server_.set_owner("run");
  client_->TakeEvents();
  server_.set_engine_silence(121, 120);
  server_.FailNextGroups({absl::DeadlineExceededError("the group did not end in time")});
  client_->Submit(Request(1), 0);
  std::vector<ServerEvent> events;
  while (events.size() < 2) {
    ASSERT_THAT(client_->Next(milliseconds(5)), IsOk());
    std::ranges::move(client_->TakeEvents(), std::back_inserter(events));
  }
  EXPECT_EQ(events[0].kind, "server_lost");
  EXPECT_EQ(events[1].kind, "server_hung");
  EXPECT_EQ(events[1].address, server_.address());
  EXPECT_THAT(events[1].message, ::testing::HasSubstr("has not moved for 121.0 s"));
  EXPECT_EQ(client_->queues().servers_hung, 1);
  EXPECT_THAT(client_->Missing(), ::testing::HasSubstr("has not moved for 121.0 s"));
  for (int64_t id = 2; id < 6; ++id) client_->Submit(Request(id));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Next().server, 1);
  EXPECT_FALSE(client_->IsReady(0));
  EXPECT_TRUE(client_->TakeEvents().empty()) << "once, and not with each probe";
  server_.set_engine_silence(0, 120);
  EXPECT_EQ(Next().server, 0) << "its proof holds";
  EXPECT_EQ(client_->TakeEvents().at(0).kind, "server_back");
  EXPECT_EQ(client_->queues().servers_hung, 0);
}

TEST_F(RolloutClientTest, AnEngineSilentForAsLongAsAGroupMayTakeHangs) {
  for (const double servers_most : {0.0, 120.0}) {
    server_.set_engine_silence(20, servers_most);
    Start({server_.address()}, {.call_timeout_seconds = 20, .retry_initial_seconds = 0.01});
    while (client_->queues().servers_hung == 0) ASSERT_THAT(client_->Next(milliseconds(5)), IsOk());
    EXPECT_THAT(client_->TakeEvents().at(0).message, ::testing::HasSubstr("hangs from 20.0 s on"));
    server_.set_engine_silence(19.9, servers_most);
    EXPECT_EQ(client_->Behind(seconds(20)).size(), 1u) << "a step may take its time";
  }
}

TEST_F(RolloutClientTest, ADoubtedServerIsReadyAgainWhenItAnswers) {
  Connect({server_.address()});
  server_.set_owner("run");
  client_->TakeEvents();
  client_->Doubt(0, "a score met the end of its connection");
  client_->Submit(Request(1));
  EXPECT_THAT(Next().status, IsOk());
  const auto events = client_->TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].message, "a score met the end of its connection");
  EXPECT_EQ(events[1].kind, "server_back");
}

TEST_F(RolloutClientTest, GroupsOfADeadServerRunElsewhereOnce) {
  Connect({server_.address(), other_.address()});
  server_.HoldGroups();
  other_.HoldGroups();
  for (int64_t id = 0; id < 4; ++id) client_->Submit(Request(id));
  while (server_.requests().size() + other_.requests().size() < 4) {
    ASSERT_THAT(client_->Next(milliseconds(5)), IsOk());
  }
  server_.Stop();
  other_.ReleaseGroups();
  std::multiset<int64_t> ids;
  for (int i = 0; i < 4; ++i) {
    const FinishedGroup group = Next();
    EXPECT_THAT(group.status, IsOk());
    EXPECT_EQ(group.server, 1);
    ids.insert(group.group_id);
  }
  EXPECT_THAT(ids, ::testing::ElementsAre(0, 1, 2, 3));
}

TEST_F(RolloutClientTest, ADeadServerThatComesBackGetsItsGroups) {
  Connect({server_.address()});
  server_.Stop();
  client_->Submit(Request(1));
  ASSERT_THAT(client_->Next(milliseconds(100)), IsOk());
  server_.Restart();
  MarkBehindReady();
  EXPECT_THAT(Next().status, IsOk());
}

rollout::v1::GenerateGroupRequest InBatch(int64_t batch_id, int64_t group_id) {
  rollout::v1::GenerateGroupRequest request = Request(group_id);
  request.mutable_admission_batch()->set_batch_id(batch_id);
  request.mutable_admission_batch()->set_num_groups(2);
  return request;
}

// The group of the batch that came before the server died is not asked for again: a server that
// holds the other one back until the batch is whole would do so until its deadline.
TEST_F(RolloutClientTest, AGroupAskedForAgainAtAServerThatStartedOverWaitsForNoBatch) {
  Connect({server_.address()});
  client_->Submit(InBatch(1, 10), 0);
  ASSERT_EQ(Next().group_id, 10);
  server_.HoldGroups();
  client_->Submit(InBatch(1, 11), 0);
  while (server_.requests().size() < 2) ASSERT_THAT(client_->Next(milliseconds(5)), IsOk());
  server_.Stop();
  server_.Restart();
  server_.ReleaseGroups();
  MarkBehindReady();
  ASSERT_THAT(Next().status, IsOk());
  server_.set_owner("run");
  client_->Submit(InBatch(2, 20), 0);
  ASSERT_THAT(Next().status, IsOk());
  const auto requests = server_.requests();
  ASSERT_GE(requests.size(), 4u);
  EXPECT_TRUE(requests[1].has_admission_batch());
  for (size_t i = 2; i + 1 < requests.size(); ++i) {
    EXPECT_EQ(requests[i].group_id(), 11);
    EXPECT_FALSE(requests[i].has_admission_batch());
  }
  EXPECT_TRUE(requests.back().has_admission_batch()) << "a batch that is begun there is waited for";
}

// It holds the others of the batch back until this one comes again.
TEST_F(RolloutClientTest, AGroupAskedForAgainAtAServerThatOnlyBlinkedComesWithItsBatch) {
  Connect({server_.address()});
  server_.set_owner("run");
  server_.FailNextGroups({absl::UnavailableError("blink")});
  client_->Submit(InBatch(1, 10), 0);
  ASSERT_THAT(Next().status, IsOk());
  const auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_TRUE(requests.back().has_admission_batch());
}

TEST_F(RolloutClientTest, GivesUpAfterItsPatienceNamingEveryServer) {
  Connect({server_.address()}, {.server_patience_seconds = 0.3});
  server_.Stop();
  client_->Submit(Request(1));
  absl::Status status;
  while (status.ok()) status = client_->Next(milliseconds(50)).status();
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kUnavailable, "no rollout server for"));
  EXPECT_THAT(status, FailsWith(absl::StatusCode::kUnavailable, server_.address()));
}

TEST_F(RolloutClientTest, AnotherRunsServerIsAnErrorThatNamesTheRun) {
  server_.set_owner("somebody-else");
  Start({server_.address()}, {});
  client_->Behind(seconds(10));
  EXPECT_THAT(client_->Health(),
              FailsWith(absl::StatusCode::kFailedPrecondition, "belongs to run 'somebody-else'"));
}

TEST_F(RolloutClientTest, AMalformedAnswerIsAskedForAgainThenGivenUpNeverTrained) {
  Connect({server_.address()}, {.max_attempts = 3});
  server_.set_sample([](const auto&, rollout::v1::Completion* completion) {
    completion->add_token_ids(1);
    completion->set_token_hash(77);
  });
  client_->Submit(Request(1));
  const FinishedGroup group = Next();
  EXPECT_THAT(group.status, FailsWith(absl::StatusCode::kDataLoss, "changed or made anew"));
  EXPECT_TRUE(group.completions.empty());
  EXPECT_EQ(server_.requests().size(), 3u);
}

TEST_F(RolloutClientTest, AnImpossibleRequestIsNotRetried) {
  Connect({server_.address()});
  server_.FailNextGroups({absl::InvalidArgumentError("prompt over the context")});
  client_->Submit(Request(1));
  EXPECT_THAT(Next().status, FailsWith(absl::StatusCode::kInvalidArgument, "over the context"));
  EXPECT_EQ(server_.requests().size(), 1u);
}

TEST_F(RolloutClientTest, APinnedGroupRunsAtItsServerOnly) {
  Connect({server_.address(), other_.address()});
  for (int64_t id = 0; id < 6; ++id) client_->Submit(Request(id), static_cast<int>(id % 2));
  for (int i = 0; i < 6; ++i) {
    const FinishedGroup group = Next();
    EXPECT_EQ(group.server, group.group_id % 2);
  }
}

TEST_F(RolloutClientTest, AWokenCallReturnsWithoutAGroupOnceAndAFinishedGroupGoesFirst) {
  Connect({server_.address()});
  client_->Wake();
  const auto woken = client_->Next(seconds(60));
  ASSERT_THAT(woken, IsOk());
  EXPECT_FALSE(woken->has_value());
  client_->Submit(Request(1));
  EXPECT_EQ(Next().group_id, 1);
}

TEST_F(RolloutClientTest, CancelledGroupsNeverComeBack) {
  Connect({server_.address()});
  server_.HoldGroups();
  client_->Submit(Request(1));
  while (server_.requests().empty()) ASSERT_THAT(client_->Next(milliseconds(5)), IsOk());
  client_->CancelAll();
  server_.ReleaseGroups();
  client_->Submit(Request(2));
  EXPECT_EQ(Next().group_id, 2);
}

TEST_F(RolloutClientTest, AGroupThatIsNotNeededIsCancelledAloneQueuedOrUnderWay) {
  Connect({server_.address()});
  server_.HoldGroups();
  for (int64_t id = 1; id <= 4; ++id) client_->Submit(Request(id));  // two under way, two queued
  while (server_.requests().size() < 2) ASSERT_THAT(client_->Next(milliseconds(5)), IsOk());
  client_->Cancel(std::vector<int64_t>{1, 3, 99});
  EXPECT_EQ(client_->queues().groups_in_flight, 2);
  server_.ReleaseGroups();
  std::set<int64_t> came = {Next().group_id};
  came.insert(Next().group_id);
  EXPECT_EQ(came, (std::set<int64_t>{2, 4}));
  EXPECT_EQ(client_->queues().groups_in_flight, 0);
  client_->Submit(Request(1));
  EXPECT_EQ(Next().group_id, 1) << "asked for again, it comes";
}

TEST_F(RolloutClientTest, AServerThatOnlyBlinkedIsReadyAgainByItsProof) {
  Connect({server_.address()});
  server_.set_owner("run");
  server_.FailNextGroups({absl::UnavailableError("blink")});
  client_->Submit(Request(1));
  EXPECT_THAT(Next().status, IsOk());
  EXPECT_TRUE(client_->IsReady(0));
}

TEST_F(RolloutClientTest, AProofThatExpiredDoesNotBringAServerBack) {
  Connect({server_.address()});
  server_.set_owner("run");
  client_->ExpireProofs();
  server_.FailNextGroups({absl::UnavailableError("blink")});
  client_->Submit(Request(1));
  // With its proof it would be ready, and the group done, without anybody's help.
  EXPECT_EQ(client_->Behind(seconds(10)).size(), 1u);
  EXPECT_FALSE(client_->IsReady(0));
  const auto group = client_->Next(milliseconds(50));
  ASSERT_THAT(group, IsOk());
  EXPECT_FALSE(group->has_value());
}

}  // namespace
}  // namespace tandem::trainer
