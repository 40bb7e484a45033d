// GroupRegistry without an engine: the test makes the engine's reports and sets the clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/rpc/refusal.h"
#include "rollout_server/groups/group_registry.h"
#include "tests/rollout_server/group_reader.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using rpc::Refusal;
using rpc::RefusalOf;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using testing::MakeSubmission;
using testing::Reader;

class GroupRegistryAloneTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMemory = 10000;

  // Joins a group that takes `min_version` and newer; its key at the engine, if it got there.
  struct Joined {
    absl::StatusOr<std::shared_ptr<GroupCall>> call;
    GroupKey key = 0;
  };
  Joined Join(int64_t group_id, double seconds_left = 300, int64_t min_version = 0) {
    GroupSubmission submission = MakeSubmission(group_id);
    submission.seconds_left = seconds_left;
    submission.min_weight_version = min_version;
    submission.live_version = live_version_;
    return Join(std::move(submission));
  }
  // A call of a client without ownership, while a run owns the server.
  Joined JoinWithoutOwning(int64_t group_id) {
    GroupSubmission submission = MakeSubmission(group_id, 2, "");
    submission.yields = true;
    return Join(std::move(submission));
  }
  Joined Join(GroupSubmission submission) {
    submitted_.clear();
    Joined joined{alone_.Join(std::move(submission), std::make_shared<Reader>())};
    if (!submitted_.empty()) joined.key = submitted_[0].key;
    return joined;
  }

  // What a group of `key` drew: `num_bytes` charged to it, from weights of `version`.
  FinishedCompletion Drawn(GroupKey key, int64_t num_bytes, int64_t version = 0) {
    FinishedCompletion completion;
    completion.token_ids = {1};
    completion.version_spans = {{{version}, 1}};
    completion.charge = ByteCharge(meters_.at(key), num_bytes);
    return completion;
  }

  void Finish(GroupKey key, FinishedCompletion completion) {
    alone_.OnEvents(
        {GroupStarted{key}, CompletionFinished{key, std::move(completion)}, GroupFinished{key}});
  }

  static GroupCall::Item First(const GroupCall& call) {
    size_t cursor = 0;
    return call.Next(&cursor);
  }
  static absl::Status ErrorOf(const GroupCall& call) {
    const GroupCall::Item item = First(call);
    const auto* const error = std::get_if<absl::Status>(&item);
    return error == nullptr ? absl::OkStatus() : *error;
  }

  double now_ = 1000;
  int64_t live_version_ = 0;
  std::vector<GroupRequest> submitted_;  // by the last Join
  std::vector<GroupKey> aborted_, put_last_;
  std::map<GroupKey, std::shared_ptr<ByteMeter>> meters_;
  GroupRegistry alone_{{[this](std::vector<GroupRequest> groups) {
                          for (const GroupRequest& one : groups) {
                            meters_[one.key] = one.charge.meter();
                          }
                          submitted_ = std::move(groups);
                        },
                        [this](GroupKey key) { aborted_.push_back(key); }, [](GroupKey) {},
                        [this](const std::vector<GroupKey>& keys) {
                          put_last_.insert(put_last_.end(), keys.begin(), keys.end());
                        }},
                       {.max_queued_groups = 8, .remembered_groups = 8, .memory_bytes = kMemory},
                       [this] { return now_; }};
};

TEST_F(GroupRegistryAloneTest, TimeWithoutWaitingGroupsIsNoServiceTime) {
  // Ten groups start in step with their arrival, then the trainer trains for 600 s.
  for (int64_t id = 1; id <= 10; ++id) {
    const Joined one = Join(id);
    ASSERT_THAT(one.call, IsOk());
    now_ += 1;
    Finish(one.key, Drawn(one.key, 1));
  }
  now_ += 600;
  const Joined eleventh = Join(11);
  now_ += 1;
  alone_.OnEvents({GroupStarted{eleventh.key}});
  ASSERT_THAT(Join(12).call, IsOk());
  ASSERT_THAT(Join(13).call, IsOk());
  EXPECT_THAT(Join(14, /*seconds_left=*/3).call, IsOk()) << "two wait, one starts every second";
}

TEST_F(GroupRegistryAloneTest, AQueueThatMovesSlowlyRefusesWhatWouldComeTooLate) {
  std::vector<GroupKey> keys;
  for (int64_t id = 1; id <= 5; ++id) keys.push_back(Join(id, 1000).key);
  // One starts every 10 s, while the others wait: 10 less (10 - 0.5) x 0.8^4 = 6.1088 s a group.
  for (int i = 0; i < 4; ++i) {
    now_ += 10;
    alone_.OnEvents({GroupStarted{keys[static_cast<size_t>(i)]}});
  }
  EXPECT_EQ(alone_.retry_after_ms(), 6108);
  EXPECT_EQ(RefusalOf(Join(6, /*seconds_left=*/6).call.status()), Refusal::kDeadlineBeforeStart);
  EXPECT_THAT(Join(7, /*seconds_left=*/6.2).call, IsOk());
}

TEST_F(GroupRegistryAloneTest, GroupsOfALowerPriorityAreNotBeforeOneThatIsAskedForNow) {
  GroupSubmission behind = MakeSubmission(1);
  behind.request.priority = -1;
  ASSERT_THAT(alone_.Join(behind, std::make_shared<Reader>()), IsOk());
  EXPECT_THAT(Join(2, /*seconds_left=*/0.4).call, IsOk()) << "one start takes 0.5 s";
  EXPECT_EQ(RefusalOf(Join(3, /*seconds_left=*/0.4).call.status()), Refusal::kDeadlineBeforeStart);
}

TEST_F(GroupRegistryAloneTest, AGroupOfABatchIsNotRefusedForTheOthersThatItHoldsBack) {
  for (int64_t id = 1; id <= 3; ++id) {
    GroupSubmission submission = MakeSubmission(id);
    submission.batch = AdmissionBatches::BatchRef{"run", 1, 3};
    submission.seconds_left = 0.4;  // less than the time of one start
    EXPECT_THAT(alone_.Join(std::move(submission), std::make_shared<Reader>()), IsOk()) << id;
  }
  EXPECT_EQ(submitted_.size(), 3u);
}

TEST_F(GroupRegistryAloneTest, APauseOfTheEngineIsNoServiceTime) {
  const Joined first = Join(1), second = Join(2);
  now_ += 600;
  alone_.OnResumed();
  now_ += 0.5;
  alone_.OnEvents({GroupStarted{first.key}});
  EXPECT_NEAR(static_cast<double>(alone_.retry_after_ms()), 500, 1);
  EXPECT_THAT(Join(3, /*seconds_left=*/1).call, IsOk());
}

TEST_F(GroupRegistryAloneTest, RememberedGroupsAreForgottenBeforeOthersAreRefused) {
  for (int64_t id = 1; id <= 2; ++id) {
    const GroupKey key = Join(id).key;
    submitted_.clear();
    Finish(key, Drawn(key, 4000));
  }
  EXPECT_EQ(alone_.memory()->used(), 8000);
  // Beside one of the two groups, 1000 ids of 4 bytes fit.
  GroupSubmission large = MakeSubmission(3);
  large.request.prompt.assign(1000, 7);
  ASSERT_THAT(alone_.Join(std::move(large), std::make_shared<Reader>()), IsOk());
  EXPECT_EQ(Join(2).key, 0) << "the latest is remembered";
  EXPECT_NE(Join(1).key, 0) << "the oldest was forgotten, and is drawn again";
}

TEST_F(GroupRegistryAloneTest, AFullMemoryRefusesByNameAndSaysThatItIsBusy) {
  const Joined runs = Join(1);
  alone_.OnEvents({GroupStarted{runs.key}, CompletionFinished{runs.key, Drawn(runs.key, 9900)}});
  const absl::Status full = Join(2).call.status();
  EXPECT_THAT(full, FailsWith(absl::StatusCode::kResourceExhausted, "server.memory_bytes = 10000"));
  EXPECT_EQ(RefusalOf(full), Refusal::kMemoryFull);
  GroupSubmission huge = MakeSubmission(3);
  huge.request.prompt.assign(2501, 7);
  const absl::Status never = alone_.Join(std::move(huge), std::make_shared<Reader>()).status();
  EXPECT_THAT(never, FailsWith(absl::StatusCode::kInvalidArgument, "the request alone has"));
  EXPECT_EQ(RefusalOf(never), Refusal::kTooLarge);
}

TEST_F(GroupRegistryAloneTest, TheYoungestGroupEndsWhenWhatRunsOutgrowsTheMemory) {
  const Joined older = Join(1), younger = Join(2), waits = Join(3);
  alone_.OnEvents({GroupStarted{older.key}, GroupStarted{younger.key}});
  const ByteCharge of_older(meters_.at(older.key), 6000);
  alone_.KeepWithinMemory();
  EXPECT_TRUE(aborted_.empty()) << "it fits";
  const ByteCharge of_younger(meters_.at(younger.key), 5000);
  alone_.KeepWithinMemory();
  EXPECT_THAT(aborted_, ::testing::ElementsAre(younger.key));
  const absl::Status ended = ErrorOf(**younger.call);
  EXPECT_THAT(ended, FailsWith(absl::StatusCode::kResourceExhausted, "group 2 was ended with 5"));
  EXPECT_EQ(RefusalOf(ended), Refusal::kMemoryFull);
  EXPECT_THAT(ErrorOf(**older.call), IsOk());
  EXPECT_THAT(ErrorOf(**waits.call), IsOk());
}

TEST_F(GroupRegistryAloneTest, AGroupThatOutgrowsTheMemoryAloneIsToldThatItIsTooLarge) {
  const Joined one = Join(1);
  alone_.OnEvents({GroupStarted{one.key}});
  const ByteCharge drawn(meters_.at(one.key), kMemory);
  alone_.KeepWithinMemory();
  EXPECT_EQ(RefusalOf(ErrorOf(**one.call)), Refusal::kTooLarge);
  EXPECT_FALSE(IsBusy(RefusalOf(ErrorOf(**one.call))));
}

TEST_F(GroupRegistryAloneTest, OthersEndBeforeTheOwnerWhenRunningGroupsOutgrowTheMemory) {
  const Joined other = JoinWithoutOwning(1), owner = Join(2);
  alone_.OnEvents({GroupStarted{other.key}, GroupStarted{owner.key}});
  const ByteCharge of_other(meters_.at(other.key), 4000);
  const ByteCharge of_owner(meters_.at(owner.key), 5000);
  alone_.KeepWithinMemory();
  EXPECT_TRUE(aborted_.empty()) << "it fits";
  const ByteCharge more_of_owner(meters_.at(owner.key), 2000);
  alone_.KeepWithinMemory();
  EXPECT_THAT(aborted_, ::testing::ElementsAre(other.key)) << "the owner's is younger, and stays";
}

TEST_F(GroupRegistryAloneTest, OthersHoldHalfOfTheMemoryAndTheOwnerAllOfIt) {
  const Joined slow = JoinWithoutOwning(1);
  Finish(slow.key, Drawn(slow.key, 4950));  // its caller does not read it
  const Joined refused = JoinWithoutOwning(2);
  EXPECT_THAT(refused.call, FailsWith(absl::StatusCode::kResourceExhausted,
                                      "half of server.memory_bytes = 10000"));
  EXPECT_EQ(RefusalOf(refused.call.status()), Refusal::kMemoryFull);
  const Joined owner = Join(3);
  ASSERT_THAT(owner.call, IsOk());
  alone_.OnEvents({GroupStarted{owner.key}});
  const ByteCharge drawn(meters_.at(owner.key), 4000);
  alone_.KeepWithinMemory();
  EXPECT_TRUE(aborted_.empty());
}

TEST_F(GroupRegistryAloneTest, AGroupThatOutgrowsTheOthersHalfEndsThoughThereIsMemory) {
  const Joined other = JoinWithoutOwning(1);
  alone_.OnEvents({GroupStarted{other.key}});
  const ByteCharge drawn(meters_.at(other.key), 5001);
  alone_.KeepWithinMemory();
  EXPECT_THAT(aborted_, ::testing::ElementsAre(other.key));
  const absl::Status ended = ErrorOf(**other.call);
  EXPECT_EQ(RefusalOf(ended), Refusal::kTooLarge) << "it would never fit, however often it asked";
  EXPECT_THAT(ended,
              FailsWith(absl::StatusCode::kResourceExhausted,
                        "over half of server.memory_bytes = 10000 (the rest is for the run"));
}

TEST_F(GroupRegistryAloneTest, ARequestOverTheOthersHalfIsTooLarge) {
  GroupSubmission large = MakeSubmission(1);
  large.request.prompt.assign(1251, 7);  // of 4 bytes
  EXPECT_THAT(Join(large).call, IsOk());
  large.group_id = 2;
  large.yields = true;
  const absl::Status never = Join(std::move(large)).call.status();
  EXPECT_THAT(
      never,
      FailsWith(
          absl::StatusCode::kInvalidArgument,
          "groups of clients without ownership may hold half of server.memory_bytes = 10000"));
  EXPECT_EQ(RefusalOf(never), Refusal::kTooLarge);
}

// The caller "owner" claims the server for "run".
class PutBehindTest : public GroupRegistryAloneTest {
 protected:
  Joined JoinAs(const std::string& caller, int64_t group_id, int32_t priority = 0) {
    GroupSubmission submission = MakeSubmission(group_id);
    submission.caller = caller;
    submission.request.priority = priority;
    return Join(std::move(submission));
  }
  static constexpr int32_t kHighest = std::numeric_limits<int32_t>::max();
};

TEST_F(PutBehindTest, WhatOthersAskedForBeforeTheClaimIsPutLastAndTheOwnersStays) {
  const Joined owners = JoinAs("owner", 1), others = JoinAs("other", 1, kHighest);
  const Joined other = Join(MakeSubmission(3, 2, ""));
  const Joined runs = JoinAs("other", 4);
  alone_.OnEvents({GroupStarted{runs.key}});
  alone_.PutOthersBehind("run", "owner");
  EXPECT_THAT(put_last_, ::testing::ElementsAre(others.key, other.key));
  EXPECT_TRUE(aborted_.empty());
  alone_.PutOthersBehind("run", "owner");
  EXPECT_EQ(put_last_.size(), 2u) << "once";
}

TEST_F(PutBehindTest, OthersThatWaitBeyondHalfOfTheQueueEndAndTheOwnerHasTheirPlaces) {
  std::vector<Joined> others;
  for (int64_t id = 1; id <= 8; ++id) others.push_back(JoinAs("other", id, kHighest));
  ASSERT_THAT(JoinAs("owner", 1).call,
              FailsWith(absl::StatusCode::kResourceExhausted, "the queue is full"));
  alone_.PutOthersBehind("run", "owner");
  EXPECT_THAT(aborted_,
              ::testing::ElementsAre(others[4].key, others[5].key, others[6].key, others[7].key));
  EXPECT_THAT(ErrorOf(**others[3].call), IsOk());
  const absl::Status ended = ErrorOf(**others[4].call);
  EXPECT_THAT(ended,
              FailsWith(absl::StatusCode::kResourceExhausted, "run 'run' claimed this server"));
  EXPECT_EQ(RefusalOf(ended), Refusal::kQueueFull) << "to ask again is worth it";
  GroupSubmission urgent = MakeSubmission(1);
  urgent.caller = "owner";
  urgent.seconds_left = 0.4;  // less than one start takes
  EXPECT_THAT(Join(std::move(urgent)).call, IsOk()) << "what was put behind is not before it";
  for (int64_t id = 2; id <= 4; ++id) EXPECT_THAT(JoinAs("owner", id).call, IsOk());
}

TEST_F(PutBehindTest, WhatABatchHoldsBackComesOutOfItBehindTheOwners) {
  for (int64_t id = 1; id <= 2; ++id) {
    GroupSubmission submission = MakeSubmission(id);
    submission.caller = "other";
    submission.request.priority = kHighest;
    submission.batch = AdmissionBatches::BatchRef{"run", 1, 2};
    ASSERT_THAT(Join(std::move(submission)).call, IsOk());
    if (id == 1) alone_.PutOthersBehind("run", "owner");
  }
  ASSERT_EQ(submitted_.size(), 2u);
  EXPECT_EQ(submitted_[0].priority, std::numeric_limits<int32_t>::min());
}

TEST_F(PutBehindTest, WhatOthersHoldCountsInTheirHalfOfTheMemoryFromThenOn) {
  const Joined other = JoinAs("other", 1);
  alone_.OnEvents({GroupStarted{other.key}});
  ByteCharge drawn(meters_.at(other.key), 5001);
  alone_.KeepWithinMemory();
  EXPECT_TRUE(aborted_.empty()) << "nobody owns the server";
  alone_.PutOthersBehind("run", "owner");
  EXPECT_EQ(RefusalOf(JoinWithoutOwning(2).call.status()), Refusal::kMemoryFull);
  alone_.KeepWithinMemory();
  EXPECT_THAT(aborted_, ::testing::ElementsAre(other.key));
  drawn = ByteCharge();
  EXPECT_THAT(JoinWithoutOwning(2).call, IsOk());
}

TEST_F(PutBehindTest, RequestsThatWaitBeyondHalfOfTheMemoryEnd) {
  std::vector<Joined> others;
  std::vector<GroupRequest> at_the_engine;
  for (int64_t id = 1; id <= 2; ++id) {
    GroupSubmission submission = MakeSubmission(id);
    submission.caller = "other";
    submission.request.prompt.assign(800, 7);  // of 4 bytes: two are more than half, and fit
    others.push_back(Join(std::move(submission)));
    ASSERT_THAT(others.back().call, IsOk());
    at_the_engine.push_back(std::move(submitted_[0]));
  }
  alone_.PutOthersBehind("run", "owner");
  EXPECT_THAT(aborted_, ::testing::ElementsAre(others[1].key));
}

TEST_F(GroupRegistryAloneTest, AResultIsCountedUntilItsLastReaderIsGone) {
  Joined other{alone_.Join(MakeSubmission(1, 2, ""), std::make_shared<Reader>())};
  other.key = submitted_[0].key;
  submitted_.clear();
  Finish(other.key, Drawn(other.key, 3000));
  EXPECT_EQ(alone_.memory()->used(), 3000);
  other.call = absl::CancelledError("");
  EXPECT_EQ(alone_.memory()->used(), 0);
}

TEST_F(GroupRegistryAloneTest, AnAnswerFromMemoryIsNotOlderThanTheCallTakes) {
  const Joined first = Join(1);
  Finish(first.key, Drawn(first.key, 1, /*version=*/3));
  live_version_ = 5;
  EXPECT_EQ(*Join(1, 300, /*min_version=*/3).call, *first.call);
  const Joined again = Join(1, 300, /*min_version=*/4);
  EXPECT_NE(*again.call, *first.call) << "drawn from version 3";
  EXPECT_NE(again.key, 0) << "it is drawn anew";
}

TEST_F(GroupRegistryAloneTest, ARunningGroupOfOlderWeightsGivesWayToACallThatTakesNone) {
  live_version_ = 3;
  const Joined waits = Join(1), runs = Join(2);
  alone_.OnEvents({GroupStarted{runs.key}});
  live_version_ = 5;
  EXPECT_EQ(*Join(1, 300, /*min_version=*/5).call, *waits.call) << "it will start from version 5";
  const Joined again = Join(2, 300, /*min_version=*/5);
  EXPECT_NE(*again.call, *runs.call);
  EXPECT_THAT(aborted_, ::testing::ElementsAre(runs.key));
  EXPECT_THAT(ErrorOf(**runs.call),
              FailsWith(absl::StatusCode::kAborted, "from weights of version 5 at least"));
}

TEST(GroupRegistryOrderTest, ACallReturnsWhenItsOrderIsSentThoughAnotherThreadIsSending) {
  std::promise<void> submitting, go_on;
  std::atomic<bool> stopped{false};
  GroupRegistry groups{{[&](const std::vector<GroupRequest>&) {
                          submitting.set_value();
                          go_on.get_future().wait();
                        },
                        [](GroupKey) {}, [&](GroupKey) { stopped = true; }},
                       {},
                       [] { return 1000.0; }};
  std::thread joins(
      [&] { static_cast<void>(groups.Join(MakeSubmission(1), std::make_shared<Reader>())); });
  submitting.get_future().wait();
  auto stops = std::async(std::launch::async, [&] {
    EXPECT_TRUE(groups.StopEarly("run", 1));
    return stopped.load();
  });
  // It must not be done yet; if it is, an expectation below fails.
  stops.wait_for(std::chrono::milliseconds(50));
  go_on.set_value();
  EXPECT_TRUE(stops.get());
  joins.join();
}

TEST_F(GroupRegistryAloneTest, ADrainDoesNotWaitForABatchThatCannotBecomeWhole) {
  GroupSubmission submission = MakeSubmission(1);
  submission.batch = AdmissionBatches::BatchRef{"run", 1, 2};
  const auto held = alone_.Join(std::move(submission), std::make_shared<Reader>());
  ASSERT_THAT(held, IsOk());
  alone_.StartDrain();
  EXPECT_THAT(ErrorOf(**held), FailsWith(absl::StatusCode::kUnavailable, "draining"));
  EXPECT_TRUE(alone_.WaitUntilIdle(std::chrono::steady_clock::now()));
}

TEST_F(GroupRegistryAloneTest, ARunThatStartsOverLeavesNothingInItsBatches) {
  const AdmissionBatches::BatchRef two{"run", 1, 2};
  GroupSubmission submission = MakeSubmission(1);
  submission.batch = two;
  const auto held = alone_.Join(std::move(submission), std::make_shared<Reader>());
  alone_.Forget("run");
  EXPECT_THAT(ErrorOf(**held), FailsWith(absl::StatusCode::kAborted, "the run started over"));
  GroupSubmission second = MakeSubmission(2);
  second.batch = two;
  ASSERT_THAT(alone_.Join(std::move(second), std::make_shared<Reader>()), IsOk());
  EXPECT_TRUE(submitted_.empty()) << "the batch waits for a first group of the new epoch";
}

}  // namespace
}  // namespace tandem::rollout
