#include "cli/run/rank_processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::TempDir;
using ::tandem::testing::WaitUntil;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kAges = 600;  // in seconds; a test that waits this long fails

class RankProcessesTest : public ::testing::Test {
 protected:
  RanksPlan Plan(const std::string& script, int per_node = 2) {
    RanksPlan plan;
    plan.node = {.per_node = per_node, .master_port = 4711};
    plan.argv = {"/bin/sh", "-c", script, "rank", dir_ / ""};
    plan.grace_seconds = kAges;
    return plan;
  }

  int Run(const RanksPlan& plan) {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    RankProcesses ranks(plan, &stop_);
    const absl::Status started = ranks.Start();
    const int code = started.ok() ? ranks.Wait() : -1;
    output_ = ::testing::internal::GetCapturedStdout();
    errors_ = ::testing::internal::GetCapturedStderr();
    EXPECT_TRUE(started.ok()) << started;
    return code;
  }

  const TempDir dir_;
  StopSignal stop_;
  std::string output_, errors_;
};

TEST_F(RankProcessesTest, PutsTheRankBeforeEachLineOfEachStream) {
  EXPECT_EQ(Run(Plan("echo out $RANK/$WORLD_SIZE; echo err $LOCAL_RANK >&2; printf end")), 0);
  for (const char* const line :
       {"[rank 0] out 0/2\n", "[rank 1] out 1/2\n", "[rank 0] end\n", "[rank 1] end\n"}) {
    EXPECT_THAT(output_, HasSubstr(line));
  }
  EXPECT_THAT(errors_, HasSubstr("[rank 0] err 0\n"));
  EXPECT_THAT(errors_, HasSubstr("[rank 1] err 1\n"));
  EXPECT_THAT(output_, Not(HasSubstr("\033")));
}

TEST_F(RankProcessesTest, ColoursThePrefixAloneWhereItIsWanted) {
  RanksPlan plan = Plan("echo hello", 1);
  plan.colour_output = true;
  EXPECT_EQ(Run(plan), 0);
  EXPECT_EQ(output_, "\033[36m[rank 0]\033[0m hello\n");
}

TEST_F(RankProcessesTest, WritesFilesAndShowsTheLastLinesOfTheRankThatFailed) {
  RanksPlan plan =
      Plan("echo to $MASTER_ADDR:$MASTER_PORT; test $RANK = 0 || { echo bad >&2; exit 3; }");
  plan.logs = dir_ / "logs";
  plan.node.node = 1;
  plan.node.num_nodes = 2;
  plan.argv[2] = "echo rank $RANK; test $RANK = 2 || { echo bad >&2; exit 3; }";
  EXPECT_EQ(Run(plan), 3);
  EXPECT_EQ(*ReadFile(dir_ / "logs/rank_2.log"), "rank 2\n");
  EXPECT_EQ(*ReadFile(dir_ / "logs/rank_3.log"), "rank 3\nbad\n");
  EXPECT_EQ(output_, "");
  EXPECT_THAT(errors_, HasSubstr("rank 3 ended with exit code 3"));
  EXPECT_THAT(errors_, HasSubstr("[rank 3] bad\n"));
  EXPECT_THAT(errors_, Not(HasSubstr("rank 2 ended")));
}

TEST_F(RankProcessesTest, TheOthersMayEndByThemselvesAfterAFailure) {
  // Rank 0 ends when it notices that rank 1 is gone, as a trainer that lost a rank does.
  const std::string script =
      "if [ $RANK = 1 ]; then echo $$ > $1/pid; exit 7; fi; "
      "until [ -s $1/pid ] && ! kill -0 $(cat $1/pid) 2>/dev/null; do :; done; exit 10";
  EXPECT_EQ(Run(Plan(script)), 7);
  EXPECT_THAT(errors_, HasSubstr("rank 1 ended with exit code 7; the others have 600 s to end"));
  EXPECT_THAT(errors_, HasSubstr("rank 0 ended with exit code 10\n"));
}

TEST_F(RankProcessesTest, WhoDoesNotEndInTheGraceIsEnded) {
  RanksPlan plan = Plan("if [ $RANK = 1 ]; then exit 7; fi; exec sleep 600");
  plan.grace_seconds = 0.1;
  EXPECT_EQ(Run(plan), 7);
  EXPECT_THAT(errors_, HasSubstr("the others did not end within 0.1 s"));
  EXPECT_THAT(errors_, HasSubstr("rank 0 ended with signal 15 (Terminated)"));
}

TEST_F(RankProcessesTest, ASignalReachesEveryRankAndIsWaitedFor) {
  stop_.Request();
  EXPECT_EQ(Run(Plan("trap 'echo told; exit 143' TERM; while :; do sleep 0.01; done")), 143);
  EXPECT_THAT(output_, HasSubstr("[rank 0] told"));
  EXPECT_THAT(output_, HasSubstr("[rank 1] told"));
}

TEST_F(RankProcessesTest, NobodyIsLeftWhenTheLauncherIsKilled) {
  const pid_t launcher = fork();
  if (launcher == 0) {
    RankProcesses ranks(Plan("trap '' TERM; echo $$ > $1/pid_$RANK; while :; do sleep 0.01; done"),
                        &stop_);
    if (ranks.Start().ok()) ranks.Wait();
    _exit(1);
  }
  const auto pid_of = [&](int rank) {
    std::ifstream file(dir_ / ("pid_" + std::to_string(rank)));
    pid_t pid = 0;
    file >> pid;
    return pid;
  };
  ASSERT_TRUE(WaitUntil([&] { return pid_of(0) > 0 && pid_of(1) > 0; }));
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  const auto runs = [](pid_t pid) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string line;
    return std::getline(stat, line) && line.find(") Z ") == std::string::npos;
  };
  EXPECT_TRUE(WaitUntil([&] { return !runs(pid_of(0)) && !runs(pid_of(1)); }));
}

TEST(ExitCodeOfRanksTest, IsTheCauseAndNotTheConsequence) {
  const auto end = [](int code, bool stopped = false) {
    return RankEnd{.end = {.exit_code = code}, .stopped = stopped};
  };
  EXPECT_EQ(ExitCodeOfRanks({end(0), end(0)}), 0);
  EXPECT_EQ(ExitCodeOfRanks({end(0), end(4), end(3)}), 4);
  EXPECT_EQ(ExitCodeOfRanks({end(10), end(137)}), 137);
  EXPECT_EQ(ExitCodeOfRanks({end(10), end(10)}), 10);
  EXPECT_EQ(ExitCodeOfRanks({end(10), end(130, /*stopped=*/true)}), 10);
}

TEST(FindProgramTest, LooksAlongThePathAndThenBesideItself) {
  EXPECT_EQ(*FindProgram("./x", "/bin", "/nowhere"), "./x");
  EXPECT_EQ(*FindProgram("sh", "/nowhere:/bin", "/nowhere"), "/bin/sh");
  EXPECT_EQ(*FindProgram("sh", "/nowhere", "/bin"), "/bin/sh");
  EXPECT_THAT(FindProgram("sh", "", "/nowhere"),
              FailsWith(absl::StatusCode::kNotFound, "sh: no such program"));
}

}  // namespace
}  // namespace tandem::cli
