#include "common/process/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

namespace tandem {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

TEST(StopSignalTest, NothingIsRequestedUntilASignalComes) {
  const StopSignal stop;
  EXPECT_FALSE(stop.Requested());
  EXPECT_FALSE(stop.WaitFor(milliseconds(1)));
  EXPECT_EQ(stop.signal(), 0);
}

TEST(StopSignalTest, ASignalIsSeenWithItsNumber) {
  const StopSignal stop;
  ::raise(SIGTERM);
  EXPECT_TRUE(stop.Requested());
  EXPECT_TRUE(stop.WaitFor(minutes(1)));
  EXPECT_EQ(stop.signal(), SIGTERM);
}

TEST(StopSignalTest, ARequestWakesEveryWaitingThread) {
  StopSignal stop;
  std::atomic<int> woken = 0;
  std::thread first([&] { woken += stop.WaitFor(minutes(5)) ? 1 : 0; });
  std::thread second([&] { woken += stop.WaitFor(minutes(5)) ? 1 : 0; });
  stop.Request();
  first.join();
  second.join();
  EXPECT_EQ(woken, 2);
  EXPECT_EQ(stop.signal(), 0);
}

TEST(StopSignalTest, ASecondOneStartsClean) {
  { StopSignal().Request(); }
  EXPECT_FALSE(StopSignal().Requested());
}

TEST(StopSignalTest, AWriteToADeadPipeIsAnErrno) {
  const StopSignal stop;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  EXPECT_EQ(::write(ends[1], "x", 1), -1);
  EXPECT_EQ(errno, EPIPE);
  ::close(ends[1]);
}

TEST(StopSignalDeathTest, ASecondSignalEndsTheProcessWithItsNumber) {
  EXPECT_EXIT(
      {
        const StopSignal stop;
        ::raise(SIGTERM);
        ::raise(SIGTERM);
      },
      ::testing::ExitedWithCode(143), "");
  EXPECT_EXIT(
      {
        const StopSignal stop;
        ::raise(SIGINT);
        ::raise(SIGINT);
      },
      ::testing::ExitedWithCode(130), "");
}

}  // namespace
}  // namespace tandem
