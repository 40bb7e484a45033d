#include "common/process/libtorch_program.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <iostream>
#include <string>

namespace tandem {
namespace {

TEST(PassiveThreadsTest, LeavesAChosenWaitPolicyAlone) {
  std::string name = "program", policy = "OMP_WAIT_POLICY=active";
  char* argv[] = {name.data(), nullptr};
  char* environment[] = {policy.data(), nullptr};
  EnsurePassiveThreads(1, argv, environment);  // would end this test
}

// The process that replaces this one is this test program, which lists its tests and exits with 0.
TEST(PassiveThreadsDeathTest, StartsTheProcessAnewWithItsArguments) {
  std::string name = "libtorch_program_test", flag = "--gtest_list_tests", variable = "HOME=/";
  char* argv[] = {name.data(), flag.data(), nullptr};
  char* environment[] = {variable.data(), nullptr};
  EXPECT_EXIT(EnsurePassiveThreads(2, argv, environment), ::testing::ExitedWithCode(0), "");
}

struct SaysThatItIsDestroyed {
  ~SaysThatItIsDestroyed() { std::fputs("destroyed", stdout); }
};

TEST(ExitWithoutDestructorsTest, WritesWhatIsHeldAndDestroysNothing) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe(pipe_ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe_ends[1], STDOUT_FILENO);
    static SaysThatItIsDestroyed says;
    std::cout << "held ";
    std::fputs("back", stdout);
    ExitWithoutDestructors(7);
  }
  ::close(pipe_ends[1]);
  std::string written(64, '\0');
  written.resize(::read(pipe_ends[0], written.data(), written.size()));
  ::close(pipe_ends[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(written, "held back");
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

}  // namespace
}  // namespace tandem
