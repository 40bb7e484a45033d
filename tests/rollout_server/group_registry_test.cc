// GroupRegistry and EngineThread together, over the scripted engine, without gRPC.
#include "rollout_server/group_registry.h"

#include <gtest/gtest.h>

#include <future>

#include "common/rpc/refusal.h"
#include "rollout_server/engine_thread.h"
#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using rpc::Refusal;
using rpc::RefusalOf;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using testing::ScriptedEngine;
using testing::StepGate;

// Collects a call's items until its end.
class Reader : public GroupListener {
 public:
  void OnProgress() override {
    MutexLock lock(&mu_);
    ++progress_;
    changed_.NotifyAll();
  }

  // Waits for the end; returns the completions' indices and how it ended.
  std::pair<std::vector<int32_t>, absl::Status> ReadAll(const GroupCall& call) {
    std::vector<int32_t> indices;
    size_t cursor = 0;
    while (true) {
      int64_t seen;
      {
        MutexLock lock(&mu_);
        seen = progress_;
      }
      GroupCall::Item item = call.Next(&cursor);
      if (auto* completion = std::get_if<CompletionPtr>(&item)) {
        indices.push_back((*completion)->index);
      } else if (std::holds_alternative<GroupSummary>(item)) {
        return {indices, absl::OkStatus()};
      } else if (auto* error = std::get_if<absl::Status>(&item)) {
        return {indices, *error};
      } else {
        MutexLock lock(&mu_);
        while (progress_ == seen) changed_.Wait(&mu_);
      }
    }
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t progress_ ABSL_GUARDED_BY(mu_) = 0;
};

class GroupRegistryTest : public ::testing::Test {
 protected:
  GroupRegistryTest() {
    engine_.Start({[this](std::vector<EngineEvent> e) { groups_.OnEvents(std::move(e)); },
                   [this](GroupKey key, const absl::Status& s) { groups_.OnRejected(key, s); },
                   nullptr, [this](const absl::Status& s) { groups_.FailAll(s, true); },
                   [this] { groups_.OnResumed(); }});
  }
  ~GroupRegistryTest() override {
    gate_.Open();
    engine_.Stop();
  }

  static GroupRegistry::Ask MakeAsk(int64_t group_id, int32_t tokens = 2,
                                    const std::string& run_id = "run") {
    GroupRegistry::Ask ask;
    ask.run_id = run_id;
    ask.group_id = group_id;
    ask.fingerprint = std::to_string(tokens);
    ask.request.prompt = {1, 2, 3};
    ask.request.num_completions = 2;
    ask.request.sampling.max_new_tokens = tokens;
    return ask;
  }

  // Returns when every command posted before has run (steps are held by the gate).
  void FlushCommands() {
    std::promise<void> done;
    engine_.Resume([&](auto) { done.set_value(); });
    done.get_future().wait();
  }

  StepGate gate_;
  EngineThread engine_{std::make_unique<ScriptedEngine>(&gate_)};
  GroupRegistry groups_{{[this](std::vector<GroupRequest> g) { engine_.Submit(std::move(g)); },
                         [this](GroupKey key) { engine_.Abort(key); },
                         [this](GroupKey key) { engine_.StopEarly(key); }},
                        {.max_queued_groups = 3, .remembered_groups = 2},
                        [] { return MonotonicSeconds(); }};
};

TEST_F(GroupRegistryTest, StreamsCompletionsAndThenTheSummary) {
  gate_.Open();
  auto reader = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeAsk(1), reader);
  ASSERT_THAT(call, IsOk());
  const auto [indices, end] = reader->ReadAll(**call);
  EXPECT_THAT(end, IsOk());
  EXPECT_THAT(indices, ::testing::ElementsAre(0, 1));
}

TEST_F(GroupRegistryTest, AFinishedGroupIsGivenAgainWithoutBeingSampledAgain) {
  gate_.Open();
  auto reader = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeAsk(1), reader);
  reader->ReadAll(**call);
  auto second = std::make_shared<Reader>();
  const auto again = groups_.Join(MakeAsk(1), second);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(*again, *call);
  EXPECT_THAT(second->ReadAll(**again).first, ::testing::ElementsAre(0, 1));
  groups_.Forget("run");
  auto third = std::make_shared<Reader>();
  const auto fresh = groups_.Join(MakeAsk(1), third);
  EXPECT_NE(*fresh, *call);
  third->ReadAll(**fresh);
}

TEST_F(GroupRegistryTest, OnlyTheLatestFinishedGroupsAreRemembered) {
  gate_.Open();
  std::vector<std::shared_ptr<GroupCall>> calls;
  for (int64_t id = 1; id <= 3; ++id) {
    auto reader = std::make_shared<Reader>();
    calls.push_back(*groups_.Join(MakeAsk(id), reader));
    reader->ReadAll(*calls.back());
  }
  auto reader = std::make_shared<Reader>();
  EXPECT_EQ(*groups_.Join(MakeAsk(3), reader), calls[2]);
  EXPECT_NE(*groups_.Join(MakeAsk(1), reader), calls[0]);
}

TEST_F(GroupRegistryTest, TheLastCallerToLeaveFreesTheGroup) {
  auto first = std::make_shared<Reader>();
  auto second = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeAsk(1, 500), first);
  ASSERT_EQ(*groups_.Join(MakeAsk(1, 500), second), *call);
  EXPECT_FALSE(groups_.Leave(*call, first.get()));
  EXPECT_EQ(groups_.counts().queued, 1);
  EXPECT_TRUE(groups_.Leave(*call, second.get()));
  EXPECT_EQ(groups_.counts().queued, 0);
  gate_.Allow(3);  // far from enough to finish it
  FlushCommands();
  FlushCommands();  // stats are published after the first one's turn
  EXPECT_EQ(engine_.stats().kv_used_tokens, 0);
}

TEST_F(GroupRegistryTest, TheSameNumberWithAnotherQuestionIsRefusedExceptForGuests) {
  auto reader = std::make_shared<Reader>();
  ASSERT_THAT(groups_.Join(MakeAsk(1, 2), reader), IsOk());
  EXPECT_THAT(groups_.Join(MakeAsk(1, 5), reader),
              FailsWith(absl::StatusCode::kInvalidArgument, "group 1 of run 'run'"));
  EXPECT_THAT(groups_.Join(MakeAsk(1, 2, ""), reader), IsOk());
  EXPECT_THAT(groups_.Join(MakeAsk(1, 5, ""), reader), IsOk());
}

TEST_F(GroupRegistryTest, AFullQueueRefusesAndSaysWhenToComeBack) {
  auto reader = std::make_shared<Reader>();
  for (int64_t id = 1; id <= 3; ++id) ASSERT_THAT(groups_.Join(MakeAsk(id), reader), IsOk());
  const absl::Status full = groups_.Join(MakeAsk(4), reader).status();
  EXPECT_THAT(full, FailsWith(absl::StatusCode::kResourceExhausted, "3 groups wait"));
  EXPECT_EQ(RefusalOf(full), Refusal::kQueueFull);
  EXPECT_EQ(groups_.retry_after_ms(), 500);
  EXPECT_THAT(groups_.Join(MakeAsk(2), reader), IsOk());  // joining takes no room
}

TEST_F(GroupRegistryTest, AGroupThatWouldStartAfterItsDeadlineIsRefusedAtOnce) {
  // Before any group has started, one is taken to start every half second.
  ASSERT_THAT(groups_.Join(MakeAsk(1), std::make_shared<Reader>()), IsOk());
  GroupRegistry::Ask ask = MakeAsk(2);
  ask.seconds_left = 0.4;
  const absl::Status late = groups_.Join(ask, std::make_shared<Reader>()).status();
  EXPECT_THAT(
      late, FailsWith(absl::StatusCode::kResourceExhausted, "1 groups wait and one starts every"));
  EXPECT_EQ(RefusalOf(late), Refusal::kDeadlineBeforeStart)
      << "a caller must tell it from a server that does not answer";
  ask.seconds_left = 0.6;
  EXPECT_THAT(groups_.Join(ask, std::make_shared<Reader>()), IsOk());
}

TEST_F(GroupRegistryTest, AFinishedGroupIsReportedWithItsTimesAndTokens) {
  double now = 100;
  GroupKey key = 0;
  std::vector<GroupReport> reports;
  GroupRegistry groups{
      {[&](std::vector<GroupRequest> g) { key = g.at(0).key; }, [](GroupKey) {}, [](GroupKey) {}},
      {.max_queued_groups = 3, .remembered_groups = 2},
      [&] { return now; },
      [&](const GroupReport& report) { reports.push_back(report); }};
  GroupRegistry::Ask ask = MakeAsk(7);
  ask.trace = {std::string(32, 'a'), std::string(16, 'b')};
  ASSERT_THAT(groups.Join(ask, std::make_shared<Reader>()), IsOk());
  now = 102.5;
  groups.OnEvents({GroupStarted{key, 0.5}, GroupDecoding{key}});
  EXPECT_TRUE(reports.empty()) << "it runs";
  now = 105.5;
  FinishedCompletion shorter, longer;
  shorter.token_ids = {1, 2};
  longer.token_ids = {1, 2, 3, 4};
  longer.version_spans = {{{3}, 1}, {{4}, 3}};
  groups.OnEvents(
      {CompletionFinished{key, shorter}, CompletionFinished{key, longer}, GroupFinished{key}});
  ASSERT_EQ(reports.size(), 1u);
  const GroupReport& report = reports[0];
  EXPECT_EQ(report.group_id, 7);
  EXPECT_EQ(report.trace.span_id, std::string(16, 'b'));
  EXPECT_EQ(report.arrived, 100);
  EXPECT_EQ(report.started, 102);
  EXPECT_EQ(report.decoding, 102.5);
  EXPECT_EQ(report.ended, 105.5);
  EXPECT_EQ(report.num_completions, 2);
  EXPECT_EQ(report.num_tokens, 6);
  EXPECT_EQ(report.longest_tokens, 4);
  EXPECT_EQ(report.num_spanning_tokens, 4) << "two versions drew the longer one";
  EXPECT_DOUBLE_EQ(SecondsBetweenTokens(report), 1) << "three gaps in three seconds";
}

TEST_F(GroupRegistryTest, AGroupThatFailsEndsWithItsOwnErrorAndIsNotRemembered) {
  gate_.Open();
  GroupRegistry::Ask hostile = MakeAsk(1, 40);
  hostile.request.prompt[0] = 668;
  const auto failed = groups_.Join(hostile, std::make_shared<Reader>());
  auto reader = std::make_shared<Reader>();
  const auto healthy = groups_.Join(MakeAsk(2, 40), reader);
  ASSERT_THAT(healthy, IsOk());
  EXPECT_THAT(reader->ReadAll(**healthy).second, IsOk());
  EXPECT_THAT(reader->ReadAll(**failed).second,
              FailsWith(absl::StatusCode::kDataLoss, "non_finite_logits"));
  EXPECT_EQ(groups_.counts().running, 0);
  // Asked for again it is computed again: other weights may be live by then.
  const auto again = groups_.Join(hostile, std::make_shared<Reader>());
  ASSERT_THAT(again, IsOk());
  EXPECT_NE(*again, *failed);
}

TEST_F(GroupRegistryTest, WaitingEndsWhereTheStepThatAdmittedTheGroupBegan) {
  double now = 100;
  GroupKey key = 0;
  GroupRegistry groups{
      {[&](std::vector<GroupRequest> g) { key = g.at(0).key; }, [](GroupKey) {}, [](GroupKey) {}},
      {.max_queued_groups = 3, .remembered_groups = 2},
      [&] { return now; }};
  const auto call = groups.Join(MakeAsk(1), std::make_shared<Reader>());
  ASSERT_THAT(call, IsOk());
  // It waits 2 s; the step that takes its prompt lasts 0.5 s; its tokens take 3 s.
  now = 102.5;
  groups.OnEvents({GroupStarted{key, 0.5}, GroupDecoding{key}});
  now = 105.5;
  groups.OnEvents({GroupFinished{key}});
  size_t cursor = 0;
  const GroupCall::Item item = (*call)->Next(&cursor);
  const auto* summary = std::get_if<GroupSummary>(&item);
  ASSERT_NE(summary, nullptr);
  EXPECT_DOUBLE_EQ(summary->queue_ms, 2000);
  EXPECT_DOUBLE_EQ(summary->prefill_ms, 500);
  EXPECT_DOUBLE_EQ(summary->decode_ms, 3000);
}

TEST_F(GroupRegistryTest, AWholeGroupComesByIndexAndNotBeforeItsEnd) {
  GroupCall call;
  const auto completion = [](int32_t index) {
    auto one = std::make_shared<FinishedCompletion>();
    one->index = index;
    return one;
  };
  call.Append(completion(1));
  call.Append(completion(0));
  size_t cursor = 0;
  EXPECT_TRUE(std::holds_alternative<GroupCall::Nothing>(call.NextWhenWhole(&cursor)));
  call.End(GroupSummary{});
  EXPECT_EQ(std::get<CompletionPtr>(call.NextWhenWhole(&cursor))->index, 0);
  EXPECT_EQ(std::get<CompletionPtr>(call.NextWhenWhole(&cursor))->index, 1);
  EXPECT_TRUE(std::holds_alternative<GroupSummary>(call.NextWhenWhole(&cursor)));
}

TEST_F(GroupRegistryTest, AbortEndsEveryCallerWithAborted) {
  auto first = std::make_shared<Reader>();
  auto second = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeAsk(1), first);
  ASSERT_THAT(groups_.Join(MakeAsk(1), second), IsOk());
  EXPECT_TRUE(groups_.Abort("run", 1));
  EXPECT_FALSE(groups_.Abort("run", 1));
  EXPECT_THAT(first->ReadAll(**call).second,
              FailsWith(absl::StatusCode::kAborted, "group 1 was aborted"));
  EXPECT_THAT(second->ReadAll(**call).second, FailsWith(absl::StatusCode::kAborted, "group 1"));
}

TEST_F(GroupRegistryTest, AGroupTheEngineRefusesEndsWithItsError) {
  gate_.Open();
  auto reader = std::make_shared<Reader>();
  GroupRegistry::Ask ask = MakeAsk(1);
  ask.request.prompt = {666};
  const auto call = groups_.Join(std::move(ask), reader);
  EXPECT_THAT(reader->ReadAll(**call).second,
              FailsWith(absl::StatusCode::kInvalidArgument, "scripted refusal"));
}

TEST_F(GroupRegistryTest, AnEngineFailureEndsEveryGroupAndEveryLaterCommand) {
  gate_.Open();
  auto reader = std::make_shared<Reader>();
  GroupRegistry::Ask ask = MakeAsk(1);
  ask.request.prompt = {667};
  const auto call = groups_.Join(std::move(ask), reader);
  EXPECT_THAT(reader->ReadAll(**call).second,
              FailsWith(absl::StatusCode::kInternal, "scripted failure"));
  EXPECT_THAT(groups_.Join(MakeAsk(2), reader),
              FailsWith(absl::StatusCode::kInternal, "scripted failure"));
  EXPECT_THAT(engine_.Install(nullptr, {1}),
              FailsWith(absl::StatusCode::kUnavailable, "the engine has stopped"));
}

TEST_F(GroupRegistryTest, AGroupThatJoinsAStoppedEngineEndsInsteadOfWaitingForItself) {
  engine_.Stop();  // from now on it refuses inline, on the thread that joins
  auto reader = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeAsk(1), reader);
  ASSERT_THAT(call, IsOk());
  EXPECT_THAT(reader->ReadAll(**call).second,
              FailsWith(absl::StatusCode::kUnavailable, "the engine has stopped"));
  EXPECT_EQ(groups_.counts().queued, 0);
}

// A registry without an engine: the test says what that reports, and what the clock shows.
class GroupRegistryAloneTest : public GroupRegistryTest {
 protected:
  static constexpr int64_t kMemory = 10000;

  // Joins a group that takes `min_version` and newer; its key at the engine, if it got there.
  struct Joined {
    absl::StatusOr<std::shared_ptr<GroupCall>> call;
    GroupKey key = 0;
  };
  Joined Join(int64_t group_id, double seconds_left = 300, int64_t min_version = 0) {
    GroupRegistry::Ask ask = MakeAsk(group_id);
    ask.seconds_left = seconds_left;
    ask.min_weight_version = min_version;
    ask.live_version = live_version_;
    submitted_.clear();
    Joined joined{alone_.Join(std::move(ask), std::make_shared<Reader>())};
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
  std::vector<GroupKey> aborted_;
  std::map<GroupKey, std::shared_ptr<ByteMeter>> meters_;
  GroupRegistry alone_{{[this](std::vector<GroupRequest> groups) {
                          for (const GroupRequest& one : groups) {
                            meters_[one.key] = one.charge.meter();
                          }
                          submitted_ = std::move(groups);
                        },
                        [this](GroupKey key) { aborted_.push_back(key); }, [](GroupKey) {}},
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
  // Beside one of the two there is room for 1000 ids of 4 bytes.
  GroupRegistry::Ask large = MakeAsk(3);
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
  GroupRegistry::Ask huge = MakeAsk(3);
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

TEST_F(GroupRegistryAloneTest, AResultIsCountedUntilItsLastReaderIsGone) {
  Joined guest{alone_.Join(MakeAsk(1, 2, ""), std::make_shared<Reader>())};
  guest.key = submitted_[0].key;
  submitted_.clear();
  Finish(guest.key, Drawn(guest.key, 3000));
  EXPECT_EQ(alone_.memory()->used(), 3000);
  guest.call = absl::CancelledError("");
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

TEST_F(GroupRegistryAloneTest, ADrainDoesNotWaitForABatchThatCannotBecomeWhole) {
  GroupRegistry::Ask ask = MakeAsk(1);
  ask.batch = AdmissionBatches::BatchRef{"run", 1, 2};
  const auto held = alone_.Join(std::move(ask), std::make_shared<Reader>());
  ASSERT_THAT(held, IsOk());
  alone_.StartDrain();
  EXPECT_THAT(ErrorOf(**held), FailsWith(absl::StatusCode::kUnavailable, "draining"));
  EXPECT_TRUE(alone_.WaitUntilIdle(std::chrono::steady_clock::now()));
}

TEST_F(GroupRegistryAloneTest, ARunThatStartsOverLeavesNothingInItsBatches) {
  const AdmissionBatches::BatchRef two{"run", 1, 2};
  GroupRegistry::Ask ask = MakeAsk(1);
  ask.batch = two;
  const auto held = alone_.Join(std::move(ask), std::make_shared<Reader>());
  alone_.Forget("run");
  EXPECT_THAT(ErrorOf(**held), FailsWith(absl::StatusCode::kAborted, "the run started over"));
  GroupRegistry::Ask second = MakeAsk(2);
  second.batch = two;
  ASSERT_THAT(alone_.Join(std::move(second), std::make_shared<Reader>()), IsOk());
  EXPECT_TRUE(submitted_.empty()) << "the batch waits for a first group of the new epoch";
}

TEST_F(GroupRegistryTest, DrainingRefusesNewGroupsAndLetsTheKnownFinish) {
  auto reader = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeAsk(1), reader);
  groups_.StartDrain();
  EXPECT_THAT(groups_.Join(MakeAsk(2), reader),
              FailsWith(absl::StatusCode::kUnavailable, "draining"));
  EXPECT_FALSE(groups_.WaitUntilIdle(std::chrono::steady_clock::now()));
  gate_.Open();
  EXPECT_TRUE(groups_.WaitUntilIdle(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
  EXPECT_THAT(reader->ReadAll(**call).second, IsOk());
}

TEST_F(GroupRegistryTest, APausedEngineKeepsItsSequencesAndStepsAgainAfterResume) {
  std::promise<absl::Status> paused;
  engine_.Pause([&](absl::Status done) { paused.set_value(done); });
  EXPECT_THAT(paused.get_future().get(), IsOk());
  EXPECT_TRUE(engine_.paused());
  gate_.Open();
  auto reader = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeAsk(1), reader);
  FlushCommands();
  EXPECT_EQ(engine_.stats().num_tokens_sampled, 0u);
  EXPECT_EQ(groups_.counts().queued, 1);
  engine_.Resume(nullptr);
  EXPECT_THAT(reader->ReadAll(**call).second, IsOk());
}

TEST_F(GroupRegistryTest, AnAdmissionBatchLargerThanTheQueueIsRefused) {
  auto reader = std::make_shared<Reader>();
  GroupRegistry::Ask ask = MakeAsk(1);
  ask.batch = AdmissionBatches::BatchRef{"run", 1, 4};
  EXPECT_THAT(groups_.Join(std::move(ask), reader),
              FailsWith(absl::StatusCode::kInvalidArgument, "admission batch of 4 groups"));
}

TEST_F(GroupRegistryTest, AHeldGroupStartsWhenItsBatchIsComplete) {
  gate_.Open();
  auto first = std::make_shared<Reader>();
  auto second = std::make_shared<Reader>();
  GroupRegistry::Ask two = MakeAsk(2), one = MakeAsk(1);
  two.batch = one.batch = AdmissionBatches::BatchRef{"run", 1, 2};
  const auto call_two = groups_.Join(std::move(two), first);
  FlushCommands();
  EXPECT_EQ(engine_.stats().num_tokens_sampled, 0u);
  const auto call_one = groups_.Join(std::move(one), second);
  EXPECT_THAT(first->ReadAll(**call_two).second, IsOk());
  EXPECT_THAT(second->ReadAll(**call_one).second, IsOk());
}

}  // namespace
}  // namespace tandem::rollout
