#include "rollout_server/groups/engine_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/rpc/refusal.h"
#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using testing::ScriptedEngine;
using testing::StepGate;

// The engine's actions in order: 'g' is a step of groups, which takes a second; another letter is a
// slice of the score with that first id, which takes four.
struct Record {
  std::string did;  // of the engine thread, until it stopped or an answer came
  std::atomic<double> now{0};
  std::atomic<int64_t> num_scores{0};  // that exist; each is lent a token of KV
};

class TimedScore : public ScoreRun {
 public:
  TimedScore(std::unique_ptr<ScoreRun> run, char name, Record* record)
      : run_(std::move(run)), name_(name), record_(record) {
    ++record_->num_scores;
  }
  ~TimedScore() override { --record_->num_scores; }
  absl::StatusOr<ScoreProgress> Step() override {
    const auto progress = run_->Step();
    record_->did += name_;
    record_->now += 4;
    return progress;
  }
  std::vector<SequenceScore> Take() override { return run_->Take(); }

 private:
  const std::unique_ptr<ScoreRun> run_;
  const char name_;
  Record* const record_;
};

class TimedEngine : public ScriptedEngine {
 public:
  TimedEngine(StepGate* gate, StepGate* score_gate, Record* record)
      : ScriptedEngine(gate, 8, InFlight::kKeep, score_gate), record_(record) {}
  absl::StatusOr<std::vector<EngineEvent>> Step() override {
    auto events = ScriptedEngine::Step();
    record_->did += 'g';
    record_->now += 1;
    return events;
  }
  absl::StatusOr<std::unique_ptr<ScoreRun>> StartScore(std::vector<ScoreSequence> sequences,
                                                       const ScoreOptions& options) override {
    const char name = static_cast<char>(sequences[0].ids[0]);
    TANDEM_ASSIGN_OR_RETURN(auto run, ScriptedEngine::StartScore(std::move(sequences), options));
    return std::make_unique<TimedScore>(std::move(run), name, record_);
  }
  EngineStats Stats() const override {
    EngineStats stats = ScriptedEngine::Stats();
    stats.kv_used_tokens = record_->num_scores;
    return stats;
  }

 private:
  Record* const record_;
};

class EngineThreadTest : public ::testing::Test {
 protected:
  EngineThreadTest() { engine_.Start({}); }
  ~EngineThreadTest() override {
    gate_.Open();
    score_gate_.Open();
    engine_.Stop();
  }

  // A score of so many slices.
  std::future<absl::StatusOr<ScoreResult>> Score(char name, size_t num_slices,
                                                 std::function<absl::Status()> wanted = nullptr,
                                                 bool is_owner = false) {
    auto answer = std::make_shared<std::promise<absl::StatusOr<ScoreResult>>>();
    auto future = answer->get_future();
    engine_.Score(
        std::vector<ScoreSequence>(num_slices, {.ids = {name, 1}}), {},
        [answer](absl::StatusOr<ScoreResult> result) { answer->set_value(std::move(result)); },
        {.is_owner = is_owner, .wanted = std::move(wanted)});
    return future;
  }

  static GroupRequest Group(GroupKey key, int32_t max_new_tokens) {
    GroupRequest group;
    group.key = key;
    group.prompt = {1};
    group.sampling.max_new_tokens = max_new_tokens;
    return group;
  }

  StepGate gate_, score_gate_;
  Record record_;
  EngineThread engine_{std::make_unique<TimedEngine>(&gate_, &score_gate_, &record_),
                       [this] { return record_.now.load(); }};
};

TEST_F(EngineThreadTest, GroupsStepForAsLongAsASliceTookBeforeTheNextOne) {
  engine_.Submit({Group(1, 40)});
  auto answer = Score('s', 5);
  gate_.Open();
  score_gate_.Open();
  ASSERT_THAT(answer.get(), IsOk());
  engine_.Stop();
  const size_t first = record_.did.find('s');
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(record_.did.substr(first).substr(0, 21), "sggggsggggsggggsggggs");
}

TEST_F(EngineThreadTest, ScoresTakeTurns) {
  auto first = Score('A', 4);  // its first slice waits for the gate
  auto second = Score('B', 2);
  score_gate_.Open();
  ASSERT_THAT(first.get(), IsOk());
  ASSERT_THAT(second.get(), IsOk());
  EXPECT_THAT(record_.did, ::testing::AnyOf("AABABA", "ABABAA"));
}

TEST_F(EngineThreadTest, EverySecondSliceIsTheOwnersHoweverManyOthersWait) {
  std::vector<std::future<absl::StatusOr<ScoreResult>>> others;
  for (const char name : {'A', 'B', 'C', 'D'}) others.push_back(Score(name, 3));
  auto owners = Score('o', 3, nullptr, /*is_owner=*/true);
  score_gate_.Open();
  ASSERT_THAT(owners.get(), IsOk());
  for (auto& other : others) ASSERT_THAT(other.get(), IsOk());
  // The engine may have begun with earlier scores, so this looks from the owner's first slice on.
  const std::string from = record_.did.substr(record_.did.find('o'));
  ASSERT_GE(from.size(), 5u) << record_.did;
  std::string every_second, between;
  for (size_t i = 0; i < 5; ++i) (i % 2 == 0 ? every_second : between) += from[i];
  EXPECT_EQ(every_second, "ooo") << record_.did;
  EXPECT_EQ(between.find('o'), std::string::npos) << "the others are not kept waiting: " << from;
}

TEST_F(EngineThreadTest, OthersHoldHalfOfThePlacesOfScoresAndTheOwnerAllOfThem) {
  auto first = Score('A', 1);  // waits for the gate
  std::vector<std::future<absl::StatusOr<ScoreResult>>> held;
  for (int i = 1; i < EngineThread::kMaxScoresOfOthers; ++i) held.push_back(Score('B', 1));
  const absl::Status refused = Score('B', 1).get().status();
  EXPECT_THAT(refused, FailsWith(absl::StatusCode::kResourceExhausted,
                                 "32 of the 64 places are for callers that do not own"));
  EXPECT_EQ(rpc::RefusalOf(refused), rpc::Refusal::kQueueFull);
  for (int i = 0; i < 32; ++i) held.push_back(Score('o', 1, nullptr, /*is_owner=*/true));
  EXPECT_THAT(Score('o', 1, nullptr, /*is_owner=*/true).get().status(),
              FailsWith(absl::StatusCode::kResourceExhausted, "(limit 64)"));
  score_gate_.Open();
  EXPECT_THAT(first.get(), IsOk());
  for (auto& score : held) EXPECT_THAT(score.get(), IsOk());
  EXPECT_THAT(Score('B', 1).get(), IsOk()) << "the places are given back";
}

TEST_F(EngineThreadTest, AScoreRunsWhileTheGroupsArePaused) {
  std::promise<void> paused;
  engine_.Pause([&](const absl::Status&) { paused.set_value(); });
  engine_.Submit({Group(1, 4)});
  paused.get_future().wait();
  score_gate_.Open();
  ASSERT_THAT(Score('s', 3).get(), IsOk());
  EXPECT_EQ(record_.did, "sss");
}

// A weight push waits for the running slice, and the score does not go on under other weights.
TEST_F(EngineThreadTest, AnInstallComesBetweenTwoSlices) {
  auto answer = Score('s', 100000);
  auto staged = engine_.Stage({});
  ASSERT_THAT(staged, IsOk());
  auto installed = std::async(
      std::launch::async, [&] { return engine_.Install(*std::move(staged), WeightVersion{7}); });
  while (installed.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    score_gate_.Allow(1);
  }
  EXPECT_THAT(installed.get(), IsOk());
  score_gate_.Open();
  EXPECT_THAT(answer.get(), FailsWith(absl::StatusCode::kAborted, "new weights"));
}

TEST_F(EngineThreadTest, AScoreThatNobodyWantsEndsBetweenTwoSlices) {
  std::atomic<int> num_asked{0};
  auto unwanted = Score('u', 100000, [&] {
    return ++num_asked <= 3 ? absl::OkStatus() : absl::CancelledError("the caller is gone");
  });
  score_gate_.Open();
  EXPECT_THAT(unwanted.get(), FailsWith(absl::StatusCode::kCancelled, "the caller is gone"));
  EXPECT_EQ(record_.did, "uuu");
  EXPECT_THAT(Score('s', 1).get(), IsOk());
}

// Also when nothing is left to do, so that no command or step follows.
TEST_F(EngineThreadTest, WhatAScoreWasLentIsGivenBackInTheStatsBeforeItsAnswer) {
  score_gate_.Open();
  ASSERT_THAT(Score('s', 3).get(), IsOk());
  EXPECT_EQ(engine_.stats().kv_used_tokens, 0);
}

TEST_F(EngineThreadTest, EachSliceIsASignOfLife) {
  double longest_silence = 0;
  auto answer = Score('s', 100, [&] {
    longest_silence = std::max(longest_silence, engine_.SilentSeconds());
    return absl::OkStatus();
  });
  score_gate_.Open();
  ASSERT_THAT(answer.get(), IsOk());
  EXPECT_EQ(record_.now.load(), 400);
  EXPECT_LE(longest_silence, 4);
}

TEST_F(EngineThreadTest, StopAnswersAScoreThatRuns) {
  auto answer = Score('s', 100000);
  std::thread stop([&] { engine_.Stop(); });
  while (answer.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    score_gate_.Allow(1);
  }
  stop.join();
  EXPECT_THAT(answer.get(), FailsWith(absl::StatusCode::kUnavailable, "the engine has stopped"));
}

TEST_F(EngineThreadTest, AnEngineThatFailsAnswersTheScoresThatRun) {
  auto answer = Score('s', 100000);
  GroupRequest fatal = Group(1, 40);
  fatal.prompt = {667};
  engine_.Submit({fatal});
  score_gate_.Allow(2);
  gate_.Open();
  while (answer.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    score_gate_.Allow(1);
  }
  EXPECT_THAT(answer.get(), FailsWith(absl::StatusCode::kUnavailable, "the engine has stopped"));
}

// Notifies when HoldAdmissions is called: a commit then waits for the running groups.
class DrainingEngine : public ScriptedEngine {
 public:
  DrainingEngine(StepGate* gate, std::promise<void>* held)
      : ScriptedEngine(gate, /*max_running=*/8, InFlight::kDrain), held_(held) {}
  void HoldAdmissions(bool hold) override {
    ScriptedEngine::HoldAdmissions(hold);
    if (hold) held_->set_value();
  }

 private:
  std::promise<void>* const held_;
};

TEST(DrainingEngineThreadTest,
     APauseWhileACommitWaitsForRunningGroupsIsRefusedSinceBothWouldWaitForEver) {
  StepGate gate;
  std::promise<void> held, started;
  EngineThread engine(std::make_unique<DrainingEngine>(&gate, &held));
  bool has_started = false;
  engine.Start({.on_events = [&](const std::vector<EngineEvent>&) {
    if (!std::exchange(has_started, true)) started.set_value();
  }});
  GroupRequest group;
  group.key = 1;
  group.prompt = {1};
  group.sampling.max_new_tokens = 900;
  engine.Submit({group});
  gate.Allow(1);
  started.get_future().wait();
  auto installed = std::async(std::launch::async, [&] { return engine.Install(nullptr, {1}); });
  // Commands run between two steps.
  const auto step_until = [&](auto& answered) {
    while (answered.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
      gate.Allow(1);
    }
  };
  auto holds = held.get_future();
  step_until(holds);
  // Compared as text: TSan does not see into Abseil and reports a race when two threads release one
  // status.
  std::promise<std::string> paused;
  engine.Pause([&](const absl::Status& done) { paused.set_value(done.ToString()); });
  auto answer = paused.get_future();
  step_until(answer);
  EXPECT_THAT(answer.get(), ::testing::StartsWith("FAILED_PRECONDITION: a commit waits"));
  EXPECT_FALSE(engine.paused());
  engine.Resume(nullptr);  // or the install would hang this test
  gate.Open();
  EXPECT_THAT(installed.get(), IsOk());
}

}  // namespace
}  // namespace tandem::rollout
