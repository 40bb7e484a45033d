#include "common/process/stop_signal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <thread>
#include <vector>

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

// ThreadSanitizer delivers a signal when the thread enters a system call, which this one does not.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
// This thread uses the stack pointer as oneDNN's kernel of fp32 products does: to address a buffer.
TEST(StopSignalTest, ASignalLeavesTheMemoryAloneThatTheStackPointerPointsTo) {
  const StopSignal stop;
  constexpr auto kUntouched = std::byte{0x5a};
  std::vector<std::byte> work_space(size_t{1} << 18, kUntouched);
  std::byte* const middle = work_space.data() + work_space.size() / 2;
  std::atomic<bool> sent = false;
  static_assert(sizeof(sent) == 1);
  std::thread sender([&] {
    ::kill(::getpid(), SIGTERM);
    stop.WaitFor(minutes(1));
    sent = true;
  });
  void* stack = nullptr;
  asm volatile(
      "mov %%rsp, %[stack]\n"
      "mov %[middle], %%rsp\n"
      "0: pause\n"
      "cmpb $0, (%[sent])\n"
      "je 0b\n"
      "mov %[stack], %%rsp\n"
      : [stack] "=&r"(stack)
      : [middle] "r"(middle), [sent] "r"(&sent)
      : "memory", "cc");
  sender.join();
  EXPECT_TRUE(stop.Requested());
  EXPECT_EQ(std::ranges::count(work_space, kUntouched), std::ssize(work_space));
}
#endif

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
