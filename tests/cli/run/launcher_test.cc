#include "cli/run/launcher.h"

#include <gtest/gtest.h>

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/files/file_system.h"
#include "tests/support/temp_dir.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::TempDir;

// Servers and trainer are shell scripts. For a server, $0 is the port file and $1 its previous port
// (0: none). For a trainer, $0 are the addresses and $1 says whether it is a restart.
struct Scripts {
  std::string server = "echo 4711 > $0; exec sleep 600";
  std::string trainer = "exit 0";
};

LaunchPlan PlanOf(const TempDir& dir, const Scripts& scripts, int64_t num_servers = 1) {
  LaunchPlan plan;
  plan.launch = {
      .num_servers = num_servers, .ready_seconds = 20, .stop_seconds = 20, .max_restarts = 0};
  plan.logs = dir / "logs";
  plan.num_steps = 2;
  plan.server_argv = [scripts](int64_t, int64_t port, const std::string& port_file) {
    return std::vector<std::string>{"/bin/sh", "-c", scripts.server, port_file,
                                    std::to_string(port)};
  };
  plan.trainer_argv = [scripts](const std::vector<std::string>& addresses, bool again) {
    std::string joined;
    for (const std::string& address : addresses) joined += address + " ";
    return std::vector<std::string>{"/bin/sh", "-c", scripts.trainer, joined,
                                    again ? "again" : "first"};
  };
  return plan;
}

class LauncherTest : public ::testing::Test {
 protected:
  LaunchResult Run(const Scripts& scripts, int64_t num_servers = 1) {
    return Run(PlanOf(dir_, scripts, num_servers));
  }

  LaunchResult Run(LaunchPlan plan) {
    ::testing::internal::CaptureStderr();
    Launcher launcher(std::move(plan), &stop_, &live_);
    LaunchResult result = launcher.Run();
    shown_ = ::testing::internal::GetCapturedStderr();
    return result;
  }

  LaunchPlan Restarting(const Scripts& scripts, int64_t most) {
    LaunchPlan plan = PlanOf(dir_, scripts);
    plan.launch.max_restarts = most;
    plan.launch.restart_delay_seconds = 0.01;
    plan.restarts_file = dir_ / "restarts.jsonl";
    return plan;
  }

  const TempDir dir_;
  StopSignal stop_;
  LiveLine live_;
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

TEST_F(LauncherTest, TheLastLinesOfAProcessCannotMoveTheCursor) {
  const LaunchResult result = Run({.server = "printf 'reward \\033[2J said\\n' >&2; exit 3"});
  EXPECT_EQ(result.exit_code, ExitCode::kBadModelOrData);
  EXPECT_NE(shown_.find("| reward \\u001b[2J said"), std::string::npos) << shown_;
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
  plan.launch.ready_seconds = 0.05;
  ::testing::internal::CaptureStderr();
  Launcher launcher(plan, &stop_, &live_);
  EXPECT_EQ(launcher.Run().exit_code, ExitCode::kChildDied);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("rollout_server 0 was not ready"),
            std::string::npos);
}

// The trainer runs until the server has started twice.
TEST_F(LauncherTest, StartsAServerThatDiedAgainAtItsAddressWhileTheTrainerGoesOn) {
  const std::string again = dir_ / "again";
  const LaunchResult result = Run(Restarting(
      {.server = "echo 4711 > $0; [ $1 = 0 ] || { echo $1 > " + again + "; exec sleep 600; }; " +
                 "while [ ! -e $0.go ]; do sleep 0.01; done; kill -9 $$",
       .trainer = "touch " + (dir_ / "logs/rollout_server_0.port.go") + "; while [ ! -s " + again +
                  " ]; do sleep 0.01; done; echo $1 >&2"},
      1));
  EXPECT_EQ(result.exit_code, ExitCode::kOk) << shown_;
  EXPECT_EQ(*ReadFile(again), "4711\n");
  EXPECT_EQ(*ReadFile(dir_ / "logs/trainer.log"), "first\n");
  EXPECT_EQ(result.summary.RestartsLine(), "restarts: rollout_server 0 1x (launch.max_restarts)\n");
  EXPECT_NE(shown_.find("rollout_server 0 ended with signal 9"), std::string::npos) << shown_;
  EXPECT_NE(shown_.find("rollout_server 0 is started again in 0.01 s (1 of 1)"), std::string::npos)
      << shown_;
  const std::string record = *ReadFile(dir_ / "restarts.jsonl");
  EXPECT_NE(record.find(
                R"json("process":"rollout_server 0","reason":"signal 9 (Killed)","attempt":1)json"),
            std::string::npos)
      << record;
}

TEST_F(LauncherTest, StartsAServerThatDiedBeforeItWasReadyAgain) {
  const std::string died = dir_ / "died";
  const LaunchResult result =
      Run(Restarting({.server = "[ -e " + died + " ] || { touch " + died +
                                "; kill -9 $$; }; echo 4711 > $0; exec sleep 600",
                      .trainer = "echo $0 $1 >&2"},
                     1));
  EXPECT_EQ(result.exit_code, ExitCode::kOk) << shown_;
  EXPECT_EQ(*ReadFile(dir_ / "logs/trainer.log"), "127.0.0.1:4711 first\n");
  EXPECT_NE(shown_.find("rollout_server 0 is started again in 0.01 s (1 of 1)"), std::string::npos)
      << shown_;
}

TEST_F(LauncherTest, StartsAServerThatDiedWhileAnotherOneLoadsAgain) {
  const std::string died = dir_ / "died", restarted = dir_ / "restarts.jsonl";
  LaunchPlan plan = Restarting({.trainer = "echo $0 >&2"}, 1);
  plan.launch.num_servers = 2;
  plan.server_argv = [=](int64_t server, int64_t, const std::string& port_file) {
    const std::string first = "echo 4711 > $0; [ -e " + died + " ] || { touch " + died +
                              "; kill -9 $$; }; exec sleep 600";
    const std::string second =
        "while [ ! -s " + restarted + " ]; do sleep 0.01; done; echo 4712 > $0; exec sleep 600";
    return std::vector<std::string>{"/bin/sh", "-c", server == 0 ? first : second, port_file};
  };
  const LaunchResult result = Run(std::move(plan));
  EXPECT_EQ(result.exit_code, ExitCode::kOk) << shown_;
  EXPECT_EQ(*ReadFile(dir_ / "logs/trainer.log"), "127.0.0.1:4711 127.0.0.1:4712\n");
  EXPECT_EQ(result.summary.restarts.at("rollout_server 0"), 1);
}

TEST_F(LauncherTest, EndsTheRunWhenAServerNeverComesToServe) {
  const LaunchResult result = Run(Restarting({.server = "kill -9 $$"}, 2));
  EXPECT_EQ(result.exit_code, ExitCode::kChildDied);
  EXPECT_EQ(result.summary.restarts.at("rollout_server 0"), 2);
  EXPECT_FALSE(ReadFile(dir_ / "logs/trainer.log").ok());
}

TEST_F(LauncherTest, StartsATrainerThatDiedAgainFromItsCheckpointAndKeepsTheServers) {
  const LaunchResult result =
      Run(Restarting({.server = "echo $1 >&2; echo 4711 > $0; exec sleep 600",
                      .trainer = "echo $1 >&2; [ $1 = again ] || kill -9 $$"},
                     1));
  EXPECT_EQ(result.exit_code, ExitCode::kOk) << shown_;
  EXPECT_EQ(*ReadFile(dir_ / "logs/trainer.log"), "first\nagain\n");
  EXPECT_EQ(*ReadFile(dir_ / "logs/rollout_server_0.log"), "0\n");
}

TEST_F(LauncherTest, EndsTheRunWhenALimitOfRestartsIsPassed) {
  const LaunchResult result = Run(Restarting({.trainer = "kill -9 $$"}, 2));
  EXPECT_EQ(result.exit_code, ExitCode::kChildDied);
  EXPECT_EQ(result.summary.restarts.at("trainer"), 2);
  EXPECT_NE(shown_.find("trainer was started again 2 times (launch.max_restarts): the run ends"),
            std::string::npos)
      << shown_;
}

TEST_F(LauncherTest, StartsNothingAgainThatWouldEndTheSame) {
  const LaunchResult result = Run(Restarting({.trainer = "exit 6"}, 2));
  EXPECT_EQ(result.exit_code, ExitCode::kDeliveryNotProven);
  EXPECT_TRUE(result.summary.restarts.empty());
}

// The stop comes after the trainer was reaped, long before its restart.
TEST_F(LauncherTest, AStopWhileTheTrainerIsDownEndsTheRun) {
  const std::string watched = dir_ / "watched";  // then the trainer's group is killed
  LaunchPlan plan = Restarting(
      {.trainer = "setsid sh -c 'touch $2; while kill -0 $0 2>/dev/null; do sleep 0.01; done; "
                  "kill -TERM $1' $$ $PPID " +
                  watched + " & while [ ! -e " + watched + " ]; do sleep 0.01; done; kill -9 $$"},
      1);
  plan.launch.restart_delay_seconds = 60;
  EXPECT_EQ(Run(std::move(plan)).exit_code, ExitCode::kTerminated);
}

TEST(Restarts, WaitsTwiceAsLongEachTimeUpToAMinuteAndCountsEachProcessAlone) {
  Restarts restarts({.max_restarts = 8, .restart_delay_seconds = 1});
  for (const double seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(restarts.NextDelay("trainer"), seconds);
  }
  EXPECT_EQ(restarts.NextDelay("trainer"), std::nullopt);
  EXPECT_EQ(restarts.NextDelay("rollout_server 0"), 1);
  EXPECT_EQ(restarts.counts(),
            (std::map<std::string, int64_t>{{"rollout_server 0", 1}, {"trainer", 8}}));
  Restarts none({.max_restarts = 0});
  EXPECT_EQ(none.NextDelay("trainer"), std::nullopt);
  EXPECT_TRUE(none.counts().empty());
}

TEST(Restarts, AreForDeathsAndNotForReasonsThatStay) {
  EXPECT_TRUE(WorthRestart({.exit_code = 137, .signal = 9}, false));
  EXPECT_TRUE(WorthRestart({.exit_code = 1}, true));
  EXPECT_TRUE(WorthRestart({.exit_code = 10}, false));
  EXPECT_TRUE(WorthRestart({.exit_code = 0}, true));
  for (const int code : {2, 3, 4, 5, 6, 7, 8, 130}) {
    EXPECT_FALSE(WorthRestart({.exit_code = code}, false)) << code;
  }
}

}  // namespace
}  // namespace tandem::cli
