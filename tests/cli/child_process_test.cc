#include "cli/io/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/wait_until.h"

namespace tandem::cli {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;
using ::tandem::testing::WaitUntil;
using ::testing::ElementsAre;

ChildSpec Shell(const std::string& script, const TempDir& dir, bool piped = false) {
  return {.name = "child",
          .argv = {"/bin/sh", "-c", script},
          .log_path = dir / "child.log",
          .pipe_output = piped};
}

ChildEnd WaitForEnd(ChildProcess& child) {
  std::optional<ChildEnd> end;
  if (WaitUntil([&] { return (end = child.Poll()).has_value(); })) return *end;
  ADD_FAILURE() << "the child did not end";
  return child.Stop(0);
}

void WaitForLine(ChildProcess& child, const std::string& want) {
  const auto seen = [&] {
    const std::vector<std::string> lines = child.output().Lines();
    return std::find(lines.begin(), lines.end(), want) != lines.end();
  };
  EXPECT_TRUE(WaitUntil(seen)) << "no line '" << want << "'";
}

TEST(ChildProcessTest, ReportsAnExitCodeAndKeepsItsLog) {
  const TempDir dir;
  auto child = ChildProcess::Start(Shell("echo one; echo two >&2; exit 7", dir));
  ASSERT_THAT(child, IsOk());
  const ChildEnd end = WaitForEnd(**child);
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_EQ(end.ToString(), "exit code 7");
  EXPECT_THAT(LastLines(dir / "child.log", 5), ElementsAre("one", "two"));
  EXPECT_THAT(LastLines(dir / "child.log", 1), ElementsAre("two"));
}

TEST(ChildProcessTest, ReplacesAVariableOfThisProcessByItsOwn) {
  const TempDir dir;
  setenv("TANDEM_CHILD_TEST", "inherited", 1);
  ChildSpec spec = Shell("env | grep TANDEM_CHILD_TEST", dir);
  spec.environment = {"TANDEM_CHILD_TEST=own"};
  auto child = ChildProcess::Start(spec);
  unsetenv("TANDEM_CHILD_TEST");
  ASSERT_THAT(child, IsOk());
  WaitForEnd(**child);
  EXPECT_THAT(LastLines(dir / "child.log", 5), ElementsAre("TANDEM_CHILD_TEST=own"));
}

TEST(ChildProcessTest, KnowsWhereItsPartOfAnOlderLogBegins) {
  const TempDir dir;
  for (const char* const script : {"echo one", "echo two"}) {
    auto child = ChildProcess::Start(Shell(script, dir));
    ASSERT_THAT(child, IsOk());
    WaitForEnd(**child);
    const std::string log = dir / "child.log";
    EXPECT_THAT(LastLines(log, 5, (*child)->log_begin()),
                ElementsAre(std::string(script).substr(5)));
  }
}

TEST(ChildProcessTest, ReportsTheSignalThatKilledIt) {
  const TempDir dir;
  auto child = ChildProcess::Start(Shell("kill -9 $$", dir));
  ASSERT_THAT(child, IsOk());
  const ChildEnd end = WaitForEnd(**child);
  EXPECT_EQ(end.signal, SIGKILL);
  EXPECT_EQ(end.exit_code, 128 + SIGKILL);
  EXPECT_EQ(end.ToString(), "signal 9 (Killed)");
}

TEST(ChildProcessTest, HandsOverWholeLinesOfPipedOutput) {
  const TempDir dir;
  auto child = ChildProcess::Start(Shell("printf 'first\\nhalf'; exit 0", dir, true));
  ASSERT_THAT(child, IsOk());
  WaitForEnd(**child);
  EXPECT_THAT((*child)->output().Lines(), ElementsAre("first"));
  EXPECT_THAT((*child)->output().Lines(), ElementsAre());
  EXPECT_EQ((*child)->output().Rest(), "half");
  EXPECT_EQ((*child)->output().Rest(), "");
}

TEST(ChildProcessTest, KeepsStandardErrorApartWhereBothArePiped) {
  ChildSpec spec;
  spec.name = "child";
  spec.argv = {"/bin/sh", "-c", "echo out; echo err >&2"};
  spec.pipe_output = spec.pipe_errors = true;
  auto child = ChildProcess::Start(spec);
  ASSERT_THAT(child, IsOk());
  WaitForEnd(**child);
  EXPECT_THAT((*child)->output().Lines(), ElementsAre("out"));
  EXPECT_THAT((*child)->errors().Lines(), ElementsAre("err"));
}

TEST(ChildProcessTest, CutsALineThatDoesNotEnd) {
  const TempDir dir;
  auto child = ChildProcess::Start(
      Shell("head -c 100000 /dev/zero | tr '\\0' x; echo; echo last", dir, true));
  ASSERT_THAT(child, IsOk());
  std::vector<std::string> lines;
  const auto at_end = [&] {
    for (std::string& line : (*child)->output().Lines()) lines.push_back(std::move(line));
    return !lines.empty() && lines.back() == "last";
  };
  EXPECT_TRUE(WaitUntil(at_end));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_GT(lines[0].size(), LinePipe::kLongestLine);
  EXPECT_EQ(lines[0].size() + lines[1].size(), 100000u);
}

TEST(ChildProcessTest, NamesAProgramThatIsNotThere) {
  const TempDir dir;
  ChildSpec spec = Shell("", dir);
  spec.argv = {dir / "no_such_program"};
  EXPECT_THAT(ChildProcess::Start(spec),
              FailsWith(absl::StatusCode::kUnavailable, "no_such_program: No such file"));
}

TEST(ChildProcessTest, StopsPolitelyFirst) {
  const TempDir dir;
  auto child = ChildProcess::Start(
      Shell("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done", dir, true));
  ASSERT_THAT(child, IsOk());
  WaitForLine(**child, "ready");
  EXPECT_EQ((*child)->Stop(20).exit_code, 5);
}

TEST(ChildProcessTest, KillsAChildThatDoesNotListen) {
  const TempDir dir;
  auto child = ChildProcess::Start(
      Shell("trap '' TERM; echo ready; while :; do sleep 0.01; done", dir, true));
  ASSERT_THAT(child, IsOk());
  WaitForLine(**child, "ready");
  EXPECT_EQ((*child)->Stop(0.1).signal, SIGKILL);
}

TEST(ChildProcessTest, LeavesNoGrandchildBehind) {
  const TempDir dir;
  auto child = ChildProcess::Start(Shell("sleep 600 & echo $!; kill -9 $$", dir, /*piped=*/true));
  ASSERT_THAT(child, IsOk());
  WaitForEnd(**child);
  const std::vector<std::string> lines = (*child)->output().Lines();
  ASSERT_EQ(lines.size(), 1u);
  const pid_t grandchild = std::stoi(lines[0]);
  const double until = MonotonicSeconds() + 20;
  // A killed process is gone, or is a zombie that init has not reaped yet.
  bool runs = true;
  while (runs && MonotonicSeconds() < until) {
    std::ifstream stat("/proc/" + std::to_string(grandchild) + "/stat");
    std::string line;
    runs = std::getline(stat, line) && line.find(") Z ") == std::string::npos;
  }
  EXPECT_FALSE(runs);
}

TEST(ChildProcessTest, SendsTextToAChildThatReadsIt) {
  const TempDir dir;
  ChildSpec spec = Shell("read line; echo \"heard $line\"", dir, /*piped=*/true);
  spec.pipe_input = true;
  auto child = ChildProcess::Start(spec);
  ASSERT_THAT(child, IsOk());
  EXPECT_THAT((*child)->Write("a request\n"), IsOk());
  WaitForLine(**child, "heard a request");
}

TEST(ChildProcessTest, AChildThatHasEndedTakesNoText) {
  const TempDir dir;
  ChildSpec spec = Shell("exit 0", dir);
  spec.pipe_input = true;
  auto child = ChildProcess::Start(spec);
  ASSERT_THAT(child, IsOk());
  WaitForEnd(**child);
  EXPECT_THAT((*child)->Write("a request\n"),
              FailsWith(absl::StatusCode::kUnavailable, "child: standard input"));
}

TEST(ChildProcessTest, LongLinesCanBeKeptWhole) {
  const TempDir dir;
  ChildSpec spec = Shell("head -c 200000 /dev/zero | tr '\\0' x; echo", dir, /*piped=*/true);
  spec.longest_line = 1 << 20;
  auto child = ChildProcess::Start(spec);
  ASSERT_THAT(child, IsOk());
  WaitForLine(**child, std::string(200000, 'x'));
}

}  // namespace
}  // namespace tandem::cli
