#include "common/process/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/base/clock.h"

namespace tandem {
namespace {

TEST(ThreadTeamTest, EveryItemIsDoneOnce) {
  for (const int size : {1, 2, 4}) {
    ThreadTeam team(size);
    for (const int64_t n : {0, 1, 3, 50}) {
      std::vector<int> done(n);
      team.Run(
          [&](ThreadTeam::Member& member) { member.ForEach(n, [&](int64_t i) { ++done[i]; }); });
      EXPECT_EQ(done, std::vector<int>(n, 1));
    }
  }
}

TEST(ThreadTeamTest, AMemberTakesWhatASlowOneLeaves) {
  // Member 1 owns items 5 to 9, and waits in the first of them until all others are done.
  ThreadTeam team(2);
  std::atomic<int> done = 0;
  std::vector<int> by(10);
  team.Run([&](ThreadTeam::Member& member) {
    EXPECT_EQ(member.FirstOf(10), member.index() * 5);
    member.ForEach(10, [&](int64_t i) {
      by[i] = member.index();
      if (i == 5 && member.index() == 1) {
        while (done.load() < 9) std::this_thread::yield();
      }
      ++done;
    });
  });
  EXPECT_EQ(done.load(), 10);
  // Item 5 is member 1's unless member 0 was fast enough to take it too.
  EXPECT_TRUE(by[5] == 0 || by[9] == 0);
}

TEST(ThreadTeamTest, APhaseSeesAllThatThePhaseBeforeItWrote) {
  // Each phase turns x into x[i] + x[n - 1 - i]: after 20 phases every element is 2^20.
  for (const int size : {1, 2, 3}) {
    ThreadTeam team(size);
    std::vector<int64_t> x(64, 1), y(64);
    team.Run([&](ThreadTeam::Member& member) {
      for (int phase = 0; phase < 20; ++phase) {
        const auto& from = phase % 2 == 0 ? x : y;
        auto& to = phase % 2 == 0 ? y : x;
        member.ForEach(64, [&](int64_t i) { to[i] = from[i] + from[63 - i]; });
      }
    });
    EXPECT_EQ(x, std::vector<int64_t>(64, int64_t{1} << 20));
  }
}

TEST(ThreadTeamTest, EveryMemberRunsTheBodyUnderItsOwnIndex) {
  ThreadTeam team(3);
  std::vector<std::atomic<int>> runs(3);
  for (int repeat = 0; repeat < 5; ++repeat) {
    team.Run([&](ThreadTeam::Member& member) { ++runs[member.index()]; });
  }
  for (const auto& count : runs) EXPECT_EQ(count.load(), 5);
}

TEST(ThreadTeamTest, MembersThatFellAsleepComeBack) {
  // Waits longer than members spin, between two runs and while they wait for a slow one.
  const auto be_slow = [] {
    const double until = MonotonicSeconds() + 2e-3;
    while (MonotonicSeconds() < until) std::this_thread::yield();
  };
  ThreadTeam team(2);
  std::atomic<int> sum = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    be_slow();
    team.Run([&](ThreadTeam::Member& member) {
      member.ForEach(1, [&](int64_t) {
        be_slow();
        ++sum;
      });
      member.ForEach(2, [&](int64_t) { ++sum; });
    });
  }
  EXPECT_EQ(sum.load(), 9);
}

}  // namespace
}  // namespace tandem
