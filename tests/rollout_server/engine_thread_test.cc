// EngineThread over the scripted engine, without groups of callers around it.
#include "rollout_server/engine_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <utility>

#include "tests/rollout_server/scripted_engine.h"
#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::IsOk;
using testing::ScriptedEngine;
using testing::StepGate;

// Tells when it is asked to hold admissions back: a commit then waits for the running groups.
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

TEST(EngineThreadTest, APauseWhileACommitWaitsForRunningGroupsIsRefusedSinceBothWouldWaitForEver) {
  StepGate gate;
  std::promise<void> held, started;
  EngineThread engine(std::make_unique<DrainingEngine>(&gate, &held));
  bool has_started = false;
  engine.Start({[&](const std::vector<EngineEvent>&) {
                  if (!std::exchange(has_started, true)) started.set_value();
                },
                nullptr, nullptr, nullptr, nullptr});
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
  // As text: two threads that let go of one status are a race to TSan, which does not see into
  // Abseil.
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
