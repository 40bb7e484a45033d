#include "common/comm/leave_behind.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

#include "absl/synchronization/notification.h"
#include "tests/support/status_matchers.h"

namespace tandem::comm {
namespace {

using testing::FailsWith;
using testing::IsOk;

TEST(RunOrLeaveBehind, GivesWhatTheCallMade) {
  const auto made = std::make_shared<int>(0);
  EXPECT_THAT(RunOrLeaveBehind("a sum", absl::Minutes(10), [made] { *made = 7; }), IsOk());
  EXPECT_EQ(*made, 7);
}

TEST(RunOrLeaveBehind, PassesOnWhatTheCallThrew) {
  EXPECT_THAT(RunOrLeaveBehind("a meeting", absl::Minutes(10),
                               [] { throw std::runtime_error("rank 1 closed its socket"); }),
              FailsWith(absl::StatusCode::kInternal, "rank 1 closed its socket"));
}

// The call waits for an event that does not come: the caller continues, and what the call owns
// lives until it returns.
TEST(RunOrLeaveBehind, LeavesACallBehindThatNobodyEnds) {
  struct Meeting {
    absl::Notification others_came;
    absl::Notification* gone = nullptr;
    ~Meeting() { gone->Notify(); }
  };
  absl::Notification gone;
  auto meeting = std::make_shared<Meeting>();
  meeting->gone = &gone;
  EXPECT_THAT(RunOrLeaveBehind("the meeting of group push", absl::Milliseconds(20),
                               [meeting] { meeting->others_came.WaitForNotification(); }),
              FailsWith(absl::StatusCode::kDeadlineExceeded,
                        "the meeting of group push took longer than 20ms"));
  EXPECT_FALSE(gone.HasBeenNotified());
  meeting->others_came.Notify();
  meeting.reset();
  gone.WaitForNotification();
}

}  // namespace
}  // namespace tandem::comm
