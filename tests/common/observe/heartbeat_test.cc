#include "common/observe/health.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(HeartbeatTest, IsSilentFromItsLastBeatAndNeverWhileItRests) {
  double now = 100;
  Heartbeat heartbeat([&] { return now; });
  now = 500;
  EXPECT_EQ(heartbeat.SilentSeconds(), 0) << "nothing was ever to be done";
  heartbeat.Beat();
  now = 507;
  EXPECT_EQ(heartbeat.SilentSeconds(), 7);
  heartbeat.Beat();
  EXPECT_EQ(heartbeat.SilentSeconds(), 0);
  heartbeat.Rest();
  now = 900;
  EXPECT_EQ(heartbeat.SilentSeconds(), 0);
}

TEST(HeartbeatTest, WakingStartsTheClockOfAThreadThatRestsAndOfNoOther) {
  double now = 100;
  Heartbeat heartbeat([&] { return now; });
  heartbeat.Wake();
  now = 103;
  EXPECT_EQ(heartbeat.SilentSeconds(), 3) << "it was woken and did not move";
  heartbeat.Wake();
  EXPECT_EQ(heartbeat.SilentSeconds(), 3) << "more work does not excuse it";
}

}  // namespace
}  // namespace tandem
