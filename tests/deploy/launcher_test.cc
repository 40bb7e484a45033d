#include "deploy/tandem/launcher.h"

#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "tests/support/temp_dir.h"

namespace tandem::front {
namespace {

using ::tandem::testing::TempDir;

// Servers and trainer are shell scripts: $0 is the port file of a server, the addresses of a
// trainer.
struct Scripts {
  std::string server = "echo 4711 > $0; exec sleep 600";
  std::string trainer = "exit 0";
};

LaunchPlan PlanOf(const TempDir& dir, const Scripts& scripts, int64_t num_servers = 1) {
  LaunchPlan plan;
  plan.logs = dir / "logs";
  plan.num_servers = num_servers;
  plan.num_steps = 2;
  plan.ready_seconds = 20;
  plan.stop_seconds = 20;
  plan.server_argv = [scripts](int64_t, const std::string& port_file) {
    return std::vector<std::string>{"/bin/sh", "-c", scripts.server, port_file};
  };
  plan.trainer_argv = [scripts](const std::vector<std::string>& addresses) {
    std::string joined;
    for (const std::string& address : addresses) joined += address + " ";
    return std::vector<std::string>{"/bin/sh", "-c", scripts.trainer, joined};
  };
  return plan;
}

class LauncherTest : public ::testing::Test {
 protected:
  LaunchResult Run(const Scripts& scripts, int64_t num_servers = 1) {
    ::testing::internal::CaptureStderr();
    Launcher launcher(PlanOf(dir_, scripts, num_servers), &stop_, &live_);
    LaunchResult result = launcher.Run();
    shown_ = ::testing::internal::GetCapturedStderr();
    return result;
  }

  const TempDir dir_;
  StopSignal stop_;
  LiveLine live_{/*is_terminal=*/false, /*colour=*/false};
  std::string shown_;
};

TEST_F(LauncherTest, RunsTheTrainerAgainstEveryServer) {
  const LaunchResult result = Run({.trainer = "echo \"$0\" >&2; exit 0"}, 2);
  EXPECT_EQ(result.exit_code, ExitCode::kOk);
  EXPECT_EQ(*ReadFile(dir_ / "logs/trainer.log"), "127.0.0.1:4711 127.0.0.1:4711 \n");
}

TEST_F(LauncherTest, ShowsStepsAndSumsThemUp) {
  const LaunchResult result = Run({.trainer = R"(
      echo '{"step":0,"eval/greedy_share_correct":0.5}'
      echo '{"step":1,"reward/mean":0.25,"time/step":3}'
      echo '{"step":2,"reward/mean":0.75,"time/step":3,"eval/greedy_share_correct":1.0}')"});
  EXPECT_EQ(result.summary.rewards, (std::vector<double>{0.25, 0.75}));
  EXPECT_EQ(result.summary.first_greedy, 0.5);
  EXPECT_EQ(result.summary.last_greedy, 1.0);
  EXPECT_NE(shown_.find("step   1/2  reward 0.250"), std::string::npos) << shown_;
}

TEST_F(LauncherTest, PassesOnTheTrainersOwnReason) {
  const LaunchResult result = Run({.trainer = "echo 'weights differ' >&2; exit 6"});
  EXPECT_EQ(result.exit_code, ExitCode::kDeliveryNotProven);
  EXPECT_NE(shown_.find("trainer ended with exit code 6"), std::string::npos) << shown_;
  EXPECT_NE(shown_.find("| weights differ"), std::string::npos) << shown_;
}

TEST_F(LauncherTest, SaysThatTheTrainerWasKilled) {
  const LaunchResult result = Run({.trainer = "kill -9 $$"});
  EXPECT_EQ(result.exit_code, ExitCode::kChildDied);
  EXPECT_NE(shown_.find("trainer ended with signal 9"), std::string::npos) << shown_;
}

TEST_F(LauncherTest, EndsTheRunWhenAServerDiesInMidRun) {
  const LaunchResult result =
      Run({.server = "echo 1 > $0; while [ ! -e $0.go ]; do sleep 0.01; done; echo bye >&2; exit 1",
           .trainer = "touch " + (dir_ / "logs/rollout_server_0.port.go") + "; exec sleep 600"});
  EXPECT_EQ(result.exit_code, ExitCode::kChildDied);
  EXPECT_NE(shown_.find("rollout_server 0 ended with exit code 1"), std::string::npos) << shown_;
  EXPECT_NE(shown_.find("| bye"), std::string::npos) << shown_;
}

TEST_F(LauncherTest, NeverStartsTheTrainerWhenAServerRefusesItsModel) {
  const LaunchResult result = Run({.server = "echo 'no such model' >&2; exit 3"});
  EXPECT_EQ(result.exit_code, ExitCode::kBadModelOrData);
  EXPECT_FALSE(ReadFile(dir_ / "logs/trainer.log").ok());
}

TEST_F(LauncherTest, PassesAStopOnAndWaitsForTheTrainerToSave) {
  stop_.Request();
  const LaunchResult result =
      Run({.trainer = "trap 'echo saved >&2; exit 143' TERM; while :; do sleep 0.01; done"});
  EXPECT_EQ(result.exit_code, ExitCode::kTerminated);
}

TEST_F(LauncherTest, EndsWithTheCodeOfItsOwnSignalWhateverTheTrainerWasPassed) {
  raise(SIGINT);
  const LaunchResult result =
      Run({.trainer = "trap 'exit 143' TERM; while :; do sleep 0.01; done"});
  EXPECT_EQ(result.exit_code, ExitCode::kInterrupted);
}

TEST_F(LauncherTest, NamesAServerThatIsNeverReady) {
  LaunchPlan plan = PlanOf(dir_, {.server = "exec sleep 600"});
  plan.ready_seconds = 0.05;
  ::testing::internal::CaptureStderr();
  Launcher launcher(plan, &stop_, &live_);
  EXPECT_EQ(launcher.Run().exit_code, ExitCode::kChildDied);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("rollout_server 0 was not ready"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::front
