#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <string>

#include "common/base/clock.h"
#include "common/base/exit_codes.h"
#include "common/base/json.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/version.h"
#include "common/base/weight_version.h"
#include "common/process/memory.h"
#include "common/rendezvous/loopback.h"
#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using testing::FailsWith;
using testing::IsOk;

TEST(JsonNumberTest, NineDigitsGiveAFloat32BackExactly) {
  EXPECT_EQ(JsonNumber(0.1), "0.1");
  EXPECT_EQ(JsonNumber(-3), "-3");
  const float third = 1.0f / 3.0f;
  EXPECT_EQ(JsonNumber(third), "0.333333343");
  EXPECT_EQ(std::stof(JsonNumber(third)), third);
}

TEST(JsonNumberTest, WhatJsonLacksIsNull) {
  EXPECT_EQ(JsonNumber(NAN), "null");
  EXPECT_EQ(JsonNumber(-INFINITY), "null");
}

TEST(ClockTest, WallTimeIsUtcWithMilliseconds) {
  using std::chrono::milliseconds;
  using std::chrono::system_clock;
  EXPECT_EQ(Rfc3339(system_clock::time_point(milliseconds(1'600'000'000'007))),
            "2020-09-13T12:26:40.007Z");
  EXPECT_EQ(Rfc3339(system_clock::time_point(milliseconds(-1))), "1969-12-31T23:59:59.999Z");
}

TEST(ClockTest, MonotonicSecondsDoNotGoBack) {
  const double first = MonotonicSeconds();
  EXPECT_GE(MonotonicSeconds(), first);
}

TEST(ExitCodesTest, FollowTheKindOfError) {
  EXPECT_EQ(ToInt(ExitCodeFor(absl::OkStatus())), 0);
  EXPECT_EQ(ToInt(ExitCodeFor(absl::InternalError(""))), 1);
  EXPECT_EQ(ToInt(ExitCodeFor(absl::InvalidArgumentError(""))), 2);
  EXPECT_EQ(ToInt(ExitCodeFor(absl::UnavailableError(""))), 4);
  EXPECT_EQ(ToInt(ExitCodeFor(absl::ResourceExhaustedError(""))), 7);
  EXPECT_EQ(ToInt(ExitCodeFor(absl::CancelledError(""))), 130);
}

TEST(ExitCodesTest, AProcessThatWasAskedToStopEndsWith128AndTheSignalsNumber) {
  EXPECT_EQ(ToInt(ExitCodeOfSignal(SIGINT)), 130);
  EXPECT_EQ(ToInt(ExitCodeOfSignal(SIGTERM)), 143);
  // A stop that another process requested has no signal.
  EXPECT_EQ(ToInt(ExitCodeOfSignal(0)), 143);
  EXPECT_TRUE(IsStop(ExitCode::kInterrupted) && IsStop(ExitCode::kTerminated));
  EXPECT_FALSE(IsStop(ExitCode::kOk) || IsStop(ExitCode::kRankLost));
}

absl::Status Doubled(const absl::StatusOr<int>& input, int* output) {
  TANDEM_ASSIGN_OR_RETURN(const int value, input);
  TANDEM_RETURN_IF_ERROR(value < 0 ? absl::OutOfRangeError("negative") : absl::OkStatus());
  *output = 2 * value;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, ReturnTheFirstErrorAndElseGoOn) {
  int output = 0;
  EXPECT_THAT(Doubled(4, &output), IsOk());
  EXPECT_EQ(output, 8);
  EXPECT_THAT(Doubled(absl::NotFoundError("gone"), &output),
              FailsWith(absl::StatusCode::kNotFound, "gone"));
  EXPECT_THAT(Doubled(-1, &output), FailsWith(absl::StatusCode::kOutOfRange, "negative"));
}

TEST(MutexTest, AWaitEndsAtItsDeadline) {
  Mutex mu;
  CondVar changed;
  MutexLock lock(&mu);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(2);
  while (changed.WaitUntil(&mu, deadline)) {
  }
  EXPECT_GE(std::chrono::steady_clock::now() + std::chrono::milliseconds(1), deadline);
}

TEST(WeightVersionTest, CountsUpByOne) {
  EXPECT_EQ(WeightVersion{4}.Next(), WeightVersion{5});
  EXPECT_LT(WeightVersion{4}, WeightVersion{5});
}

TEST(VersionTest, NamesProjectCommitAndCompiler) {
  EXPECT_EQ(ProjectVersion().substr(0, 2), "0.");
  EXPECT_FALSE(GitCommit().empty());
  EXPECT_NE(CompilerVersion().find(' '), std::string_view::npos);
}

TEST(SharedMemory, AContainersDefaultOf64MiBIsAProblemThatSaysWhatToDo) {
  EXPECT_EQ(SharedMemoryProblem(uint64_t{1} << 30), "");
  const std::string problem = SharedMemoryProblem(uint64_t{64} << 20);
  EXPECT_NE(problem.find("/dev/shm holds 64 MiB"), std::string::npos) << problem;
  EXPECT_NE(problem.find("--shm-size"), std::string::npos) << problem;
  EXPECT_EQ(SharedMemoryBytes("/no/such/place"), 0u);
  EXPECT_GT(SharedMemoryBytes("/"), 0u);
}

TEST(LoopbackTest, IsTheNetworkOf127AndTheNamesOfThisMachine) {
  for (const char* address :
       {"127.0.0.1:1", "127.9.9.9:0", "localhost:0", "[::1]:50051", "unix:/tmp/x"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.1.2.3:1", "127.attacker.example:1",
                              "1127.0.0.1:1", "localhost.example:1", ":1"}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace tandem
