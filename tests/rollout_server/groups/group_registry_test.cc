// GroupRegistry and EngineThread together, over the scripted engine, without gRPC.
#include "rollout_server/groups/group_registry.h"

#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "common/rpc/refusal.h"
#include "rollout_server/groups/engine_thread.h"
#include "tests/rollout_server/group_reader.h"
#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using rpc::Refusal;
using rpc::RefusalOf;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using testing::MakeSubmission;
using testing::Reader;
using testing::ScriptedEngine;
using testing::StepGate;

class GroupRegistryTest : public ::testing::Test {
 protected:
  GroupRegistryTest() {
    engine_.Start(
        {.on_events = [this](std::vector<EngineEvent> e) { groups_.OnEvents(std::move(e)); },
         .on_rejected = [this](GroupKey key, const absl::Status& s) { groups_.OnRejected(key, s); },
         .on_failure = [this](const absl::Status& s) { groups_.FailAll(s); },
         .on_resumed = [this] { groups_.OnResumed(); }});
  }
  ~GroupRegistryTest() override {
    gate_.Open();
    engine_.Stop();
  }

  // Returns when every command posted before has run (steps are held by the gate).
  void FlushCommands() {
    std::promise<void> done;
    const auto answer = [&](const absl::Status&) { done.set_value(); };
    engine_.paused() ? engine_.Pause(answer) : engine_.Resume(answer);  // as it is already
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
  const auto call = groups_.Join(MakeSubmission(1), reader);
  ASSERT_THAT(call, IsOk());
  const auto [indices, end] = reader->ReadAll(**call);
  EXPECT_THAT(end, IsOk());
  EXPECT_THAT(indices, ::testing::ElementsAre(0, 1));
}

TEST_F(GroupRegistryTest, AFinishedGroupIsGivenAgainWithoutBeingSampledAgain) {
  gate_.Open();
  auto reader = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeSubmission(1), reader);
  reader->ReadAll(**call);
  auto second = std::make_shared<Reader>();
  const auto again = groups_.Join(MakeSubmission(1), second);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(*again, *call);
  EXPECT_THAT(second->ReadAll(**again).first, ::testing::ElementsAre(0, 1));
  groups_.Forget("run");
  auto third = std::make_shared<Reader>();
  const auto fresh = groups_.Join(MakeSubmission(1), third);
  EXPECT_NE(*fresh, *call);
  third->ReadAll(**fresh);
}

TEST_F(GroupRegistryTest, OnlyTheLatestFinishedGroupsAreRemembered) {
  gate_.Open();
  std::vector<std::shared_ptr<GroupCall>> calls;
  for (int64_t id = 1; id <= 3; ++id) {
    auto reader = std::make_shared<Reader>();
    calls.push_back(*groups_.Join(MakeSubmission(id), reader));
    reader->ReadAll(*calls.back());
  }
  auto reader = std::make_shared<Reader>();
  EXPECT_EQ(*groups_.Join(MakeSubmission(3), reader), calls[2]);
  EXPECT_NE(*groups_.Join(MakeSubmission(1), reader), calls[0]);
}

TEST_F(GroupRegistryTest, TheLastCallerToLeaveFreesTheGroup) {
  auto first = std::make_shared<Reader>();
  auto second = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeSubmission(1, 500), first);
  ASSERT_EQ(*groups_.Join(MakeSubmission(1, 500), second), *call);
  EXPECT_FALSE(groups_.Leave(*call, first.get()));
  EXPECT_EQ(groups_.counts().queued, 1);
  EXPECT_TRUE(groups_.Leave(*call, second.get()));
  EXPECT_EQ(groups_.counts().queued, 0);
  gate_.Allow(3);  // far from enough to finish it
  FlushCommands();
  FlushCommands();  // stats are published after the first one's turn
  EXPECT_EQ(engine_.stats().kv_used_tokens, 0);
}

TEST_F(GroupRegistryTest, TheSameNumberWithAnotherRequestIsRefusedExceptWithoutARun) {
  auto reader = std::make_shared<Reader>();
  ASSERT_THAT(groups_.Join(MakeSubmission(1, 2), reader), IsOk());
  EXPECT_THAT(groups_.Join(MakeSubmission(1, 5), reader),
              FailsWith(absl::StatusCode::kInvalidArgument, "group 1 of run 'run'"));
  EXPECT_THAT(groups_.Join(MakeSubmission(1, 2, ""), reader), IsOk());
  EXPECT_THAT(groups_.Join(MakeSubmission(1, 5, ""), reader), IsOk());
}

TEST_F(GroupRegistryTest, AFullQueueRefusesAndSaysWhenToComeBack) {
  auto reader = std::make_shared<Reader>();
  for (int64_t id = 1; id <= 3; ++id) ASSERT_THAT(groups_.Join(MakeSubmission(id), reader), IsOk());
  const absl::Status full = groups_.Join(MakeSubmission(4), reader).status();
  EXPECT_THAT(full, FailsWith(absl::StatusCode::kResourceExhausted, "3 groups wait"));
  EXPECT_EQ(RefusalOf(full), Refusal::kQueueFull);
  EXPECT_EQ(groups_.retry_after_ms(), 500);
  EXPECT_THAT(groups_.Join(MakeSubmission(2), reader), IsOk());  // joining takes no room
}

TEST_F(GroupRegistryTest, AGroupThatWouldStartAfterItsDeadlineIsRefusedAtOnce) {
  // Before any group has started, the assumed pace is one every half second.
  ASSERT_THAT(groups_.Join(MakeSubmission(1), std::make_shared<Reader>()), IsOk());
  GroupSubmission submission = MakeSubmission(2);
  submission.seconds_left = 0.4;
  const absl::Status late = groups_.Join(submission, std::make_shared<Reader>()).status();
  EXPECT_THAT(
      late, FailsWith(absl::StatusCode::kResourceExhausted, "1 groups wait and one starts every"));
  EXPECT_EQ(RefusalOf(late), Refusal::kDeadlineBeforeStart)
      << "a caller must tell it from a server that does not answer";
  submission.seconds_left = 0.6;
  EXPECT_THAT(groups_.Join(submission, std::make_shared<Reader>()), IsOk());
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
  GroupSubmission submission = MakeSubmission(7);
  submission.trace = {std::string(32, 'a'), std::string(16, 'b')};
  ASSERT_THAT(groups.Join(submission, std::make_shared<Reader>()), IsOk());
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
  GroupSubmission hostile = MakeSubmission(1, 40);
  hostile.request.prompt[0] = 668;
  const auto failed = groups_.Join(hostile, std::make_shared<Reader>());
  auto reader = std::make_shared<Reader>();
  const auto healthy = groups_.Join(MakeSubmission(2, 40), reader);
  ASSERT_THAT(healthy, IsOk());
  EXPECT_THAT(reader->ReadAll(**healthy).second, IsOk());
  EXPECT_THAT(reader->ReadAll(**failed).second,
              FailsWith(absl::StatusCode::kDataLoss, "non_finite_logits"));
  EXPECT_EQ(groups_.counts().running, 0);
  // A repeated call computes it again, since other weights may be live by then.
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
  const auto call = groups.Join(MakeSubmission(1), std::make_shared<Reader>());
  ASSERT_THAT(call, IsOk());
  // It waits 2 s; the step that takes its prompt lasts 0.5 s; its tokens take 3 s.
  now = 102.5;
  groups.OnEvents({GroupStarted{key, 0.5}, GroupDecoding{key}});
  now = 105.5;
  groups.OnEvents({GroupFinished{key}});
  size_t cursor = 0;
  const GroupCall::Item item = (*call)->Next(&cursor);
  const auto* report = std::get_if<GroupReport>(&item);
  ASSERT_NE(report, nullptr);
  EXPECT_DOUBLE_EQ(report->started - report->arrived, 2);
  EXPECT_DOUBLE_EQ(report->decoding - report->started, 0.5);
  EXPECT_DOUBLE_EQ(report->ended - report->decoding, 3);
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
  call.End(GroupReport{});
  EXPECT_EQ(std::get<CompletionPtr>(call.NextWhenWhole(&cursor))->index, 0);
  EXPECT_EQ(std::get<CompletionPtr>(call.NextWhenWhole(&cursor))->index, 1);
  EXPECT_TRUE(std::holds_alternative<GroupReport>(call.NextWhenWhole(&cursor)));
}

// Each step adds 2000 bytes to what a group holds.
class GrowingEngine : public ScriptedEngine {
 public:
  using ScriptedEngine::ScriptedEngine;
  absl::Status Add(GroupRequest request) override {
    drawn_[request.key] = ByteCharge(request.charge.meter());
    return ScriptedEngine::Add(std::move(request));
  }
  bool Abort(GroupKey key) override {
    drawn_.erase(key);
    return ScriptedEngine::Abort(key);
  }
  absl::StatusOr<std::vector<EngineEvent>> Step() override {
    for (auto& [key, charge] : drawn_) charge.Add(2000);
    return ScriptedEngine::Step();
  }

 private:
  std::map<GroupKey, ByteCharge> drawn_;
};

// After the third step two groups hold over 12000 bytes, and a score ends before the engine is told
// that the younger group has ended. All calls come before the engine starts, so the order is fixed.
TEST(GroupRegistryMemoryTest, TheSameBytesEndNoSecondGroupWhenAScoreEndsMeanwhile) {
  StepGate gate;
  gate.Open();
  EngineThread engine(std::make_unique<GrowingEngine>(&gate), [] { return 0.0; });
  GroupRegistry groups(
      {[&](std::vector<GroupRequest> g) { engine.Submit(std::move(g)); },
       [&](GroupKey key) { engine.Abort(key); }, [&](GroupKey key) { engine.StopEarly(key); }},
      {.memory_bytes = 10000}, [] { return 0.0; });
  auto older = std::make_shared<Reader>(), younger = std::make_shared<Reader>();
  const auto first = groups.Join(MakeSubmission(1, /*tokens=*/4), older);
  const auto second = groups.Join(MakeSubmission(2, /*tokens=*/40), younger);
  engine.Score(std::vector<ScoreSequence>(3, {.ids = {1, 2}}), {},
               [](const absl::StatusOr<ScoreResult>& done) { EXPECT_THAT(done, IsOk()); });
  engine.Start({.on_events = [&](std::vector<EngineEvent> e) { groups.OnEvents(std::move(e)); },
                .on_stepped = [&] { groups.KeepWithinMemory(); }});
  EXPECT_EQ(RefusalOf(younger->ReadAll(**second).second), Refusal::kMemoryFull);
  EXPECT_THAT(older->ReadAll(**first).second, IsOk());
  engine.Stop();
}

TEST_F(GroupRegistryTest, AbortEndsEveryCallerWithAborted) {
  auto first = std::make_shared<Reader>();
  auto second = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeSubmission(1), first);
  ASSERT_THAT(groups_.Join(MakeSubmission(1), second), IsOk());
  EXPECT_TRUE(groups_.Abort("run", 1));
  EXPECT_FALSE(groups_.Abort("run", 1));
  EXPECT_THAT(first->ReadAll(**call).second,
              FailsWith(absl::StatusCode::kAborted, "group 1 was aborted"));
  EXPECT_THAT(second->ReadAll(**call).second, FailsWith(absl::StatusCode::kAborted, "group 1"));
}

TEST_F(GroupRegistryTest, AGroupTheEngineRefusesEndsWithItsError) {
  gate_.Open();
  auto reader = std::make_shared<Reader>();
  GroupSubmission submission = MakeSubmission(1);
  submission.request.prompt = {666};
  const auto call = groups_.Join(std::move(submission), reader);
  EXPECT_THAT(reader->ReadAll(**call).second,
              FailsWith(absl::StatusCode::kInvalidArgument, "scripted refusal"));
}

TEST_F(GroupRegistryTest, AnEngineFailureEndsEveryGroupAndEveryLaterCommand) {
  gate_.Open();
  auto reader = std::make_shared<Reader>();
  GroupSubmission submission = MakeSubmission(1);
  submission.request.prompt = {667};
  const auto call = groups_.Join(std::move(submission), reader);
  EXPECT_THAT(reader->ReadAll(**call).second,
              FailsWith(absl::StatusCode::kInternal, "scripted failure"));
  EXPECT_THAT(groups_.Join(MakeSubmission(2), reader),
              FailsWith(absl::StatusCode::kInternal, "scripted failure"));
  EXPECT_THAT(engine_.Install(nullptr, {1}),
              FailsWith(absl::StatusCode::kUnavailable, "the engine has stopped"));
}

TEST_F(GroupRegistryTest, AGroupThatJoinsAStoppedEngineEndsInsteadOfWaitingForItself) {
  engine_.Stop();  // from now on it refuses inline, on the thread that joins
  auto reader = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeSubmission(1), reader);
  ASSERT_THAT(call, IsOk());
  EXPECT_THAT(reader->ReadAll(**call).second,
              FailsWith(absl::StatusCode::kUnavailable, "the engine has stopped"));
  EXPECT_EQ(groups_.counts().queued, 0);
}

TEST_F(GroupRegistryTest, CallersThatComeAndGoOnManyThreadsLeaveNothingInTheEngine) {
  // If an abort overtook its group's submission, the group would run without a caller.
  gate_.Open();
  std::vector<std::thread> callers;
  for (int64_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([this, caller] {
      for (int64_t i = 0; i < 100; ++i) {
        auto reader = std::make_shared<Reader>();
        const auto call = groups_.Join(MakeSubmission(1000 * caller + i, 900), reader);
        if (!call.ok()) continue;  // the queue is full
        if (i % 2 == 0) {
          groups_.Leave(*call, reader.get());
        } else {
          groups_.Abort("run", 1000 * caller + i);
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(groups_.WaitUntilIdle(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
  FlushCommands();
  FlushCommands();  // stats are published after the first one's turn
  EXPECT_EQ(engine_.stats().kv_used_tokens, 0);
}

TEST_F(GroupRegistryTest, DrainingRefusesNewGroupsAndLetsTheKnownFinish) {
  auto reader = std::make_shared<Reader>();
  const auto call = groups_.Join(MakeSubmission(1), reader);
  groups_.StartDrain();
  EXPECT_THAT(groups_.Join(MakeSubmission(2), reader),
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
  const auto call = groups_.Join(MakeSubmission(1), reader);
  FlushCommands();
  EXPECT_EQ(engine_.stats().num_tokens_sampled, 0u);
  EXPECT_EQ(groups_.counts().queued, 1);
  engine_.Resume(nullptr);
  EXPECT_THAT(reader->ReadAll(**call).second, IsOk());
}

TEST_F(GroupRegistryTest, AnAdmissionBatchLargerThanTheQueueIsRefused) {
  auto reader = std::make_shared<Reader>();
  GroupSubmission submission = MakeSubmission(1);
  submission.batch = AdmissionBatches::BatchRef{"run", 1, 4};
  EXPECT_THAT(groups_.Join(std::move(submission), reader),
              FailsWith(absl::StatusCode::kInvalidArgument, "admission batch of 4 groups"));
}

TEST_F(GroupRegistryTest, AHeldGroupStartsWhenItsBatchIsComplete) {
  gate_.Open();
  auto first = std::make_shared<Reader>();
  auto second = std::make_shared<Reader>();
  GroupSubmission two = MakeSubmission(2), one = MakeSubmission(1);
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
