#include "common/base/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace tandem {
namespace {

TEST(ThreadTeamTest, EveryItemIsDoneOnceWhateverTheGrain) {
  for (const int size : {1, 2, 4}) {
    ThreadTeam team(size);
    for (const int64_t grain : {1, 3, 100}) {
      std::vector<int> done(50);
      team.Run([&](ThreadTeam::Member& member) {
        member.ForEach(50, grain, [&](int64_t i) { ++done[i]; });
      });
      EXPECT_EQ(done, std::vector<int>(50, 1));
    }
  }
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
        member.ForEach(64, 4, [&](int64_t i) { to[i] = from[i] + from[63 - i]; });
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
  ThreadTeam team(2);
  std::atomic<int> sum = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    // Longer than members spin: between two runs, and while they wait for a slow one.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    team.Run([&](ThreadTeam::Member& member) {
      member.ForEach(1, 1, [&](int64_t) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ++sum;
      });
      member.ForEach(2, 1, [&](int64_t) { ++sum; });
    });
  }
  EXPECT_EQ(sum.load(), 9);
}

}  // namespace
}  // namespace tandem
