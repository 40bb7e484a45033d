#include "trainer/rewards/external/service_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Lt;
using ::testing::SizeIs;

Attempt Down() { return {.status = absl::UnavailableError("down"), .may_repeat = true}; }

// The clock moves by what is paused, and nothing waits.
class ServiceCallTest : public ::testing::Test {
 protected:
  absl::Status Call(ServiceCaller& caller, std::vector<Attempt> attempts) {
    num_made_ = 0;
    return caller.Call([&] { return attempts.at(static_cast<size_t>(num_made_++)); },
                       [this](double seconds) {
                         pauses_.push_back(seconds);
                         now_ += seconds;
                         return ending_;
                       });
  }
  ServiceCaller Caller() {
    return {"reward.http", options_, &tally_, [this] { return now_; }};
  }

  ServiceOptions options_ = {.max_attempts = 4,
                             .retry_initial_seconds = 1,
                             .retry_max_seconds = 2.5,
                             .breaker_failures = 0};
  RewardTally tally_;
  double now_ = 0;
  bool ending_ = false;
  int num_made_ = 0;
  std::vector<double> pauses_;
};

TEST(BackoffSeconds, DoublesUpToTheMostAndIsDrawnFromZero) {
  EXPECT_DOUBLE_EQ(BackoffSeconds(0, 0.5, 30, 1), 0.5);
  EXPECT_DOUBLE_EQ(BackoffSeconds(3, 0.5, 30, 0.25), 1);
  EXPECT_DOUBLE_EQ(BackoffSeconds(10, 0.5, 30, 1), 30);
  EXPECT_DOUBLE_EQ(BackoffSeconds(2000, 0.5, 30, 0.5), 15);
  EXPECT_DOUBLE_EQ(BackoffSeconds(4, 0.5, 30, 0), 0);
}

TEST_F(ServiceCallTest, RepeatsWithDrawnPausesUntilItSucceeds) {
  ServiceCaller caller = Caller();
  EXPECT_THAT(Call(caller, {Down(), Down(), Down(), {}}), IsOk());
  EXPECT_EQ(num_made_, 4);
  EXPECT_THAT(pauses_,
              ElementsAre(AllOf(Ge(0), Lt(1)), AllOf(Ge(0), Lt(2)), AllOf(Ge(0), Lt(2.5))));
}

TEST_F(ServiceCallTest, EndsAfterMaxAttemptsWithTheirNumber) {
  ServiceCaller caller = Caller();
  EXPECT_THAT(Call(caller, {Down(), Down(), Down(), Down()}),
              FailsWith(absl::StatusCode::kUnavailable, "down (4 attempts)"));
  EXPECT_THAT(pauses_, SizeIs(3));
}

TEST_F(ServiceCallTest, WhatCannotGoBetterIsNotRepeated) {
  ServiceCaller caller = Caller();
  EXPECT_THAT(Call(caller, {{.status = absl::FailedPreconditionError("401")}}),
              FailsWith(absl::StatusCode::kFailedPrecondition, "401"));
  EXPECT_THAT(pauses_, SizeIs(0));
}

TEST_F(ServiceCallTest, WaitsAsLongAsTheServiceAsks) {
  ServiceCaller caller = Caller();
  Attempt busy = Down();
  busy.retry_after_seconds = 17;
  EXPECT_THAT(Call(caller, {busy, {}}), IsOk());
  EXPECT_THAT(pauses_, ElementsAre(17));
  busy.retry_after_seconds = 601;
  EXPECT_THAT(Call(caller, {busy}),
              FailsWith(absl::StatusCode::kUnavailable, "it asks for a pause of 601 s"));
}

TEST_F(ServiceCallTest, AnEndDuringAPauseEndsTheCall) {
  ServiceCaller caller = Caller();
  ending_ = true;
  EXPECT_THAT(Call(caller, {Down()}), FailsWith(absl::StatusCode::kCancelled, "the run ends"));
}

TEST_F(ServiceCallTest, TheBreakerOpensWithOneEventAndEndsTheCallBetweenAttempts) {
  options_.breaker_failures = 2;
  options_.breaker_pause_seconds = 100;
  ServiceCaller caller = Caller();
  EXPECT_THAT(Call(caller, {Down(), Down()}),
              FailsWith(absl::StatusCode::kUnavailable, "the circuit breaker is open"));
  EXPECT_EQ(num_made_, 2);
  EXPECT_FALSE(Call(caller, {}).ok());
  EXPECT_EQ(num_made_, 0) << "failed at once";
  const std::vector<RewardEvent> events = tally_.TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].kind, "reward_breaker_opened");
  EXPECT_EQ(events[0].message, "reward.http: down");
  EXPECT_DOUBLE_EQ(tally_.unanswered_until(), pauses_[0] + 100) << "so long a run may wait";
  now_ += 100;
  EXPECT_THAT(Call(caller, {{}}), IsOk());
  EXPECT_EQ(tally_.unanswered_until(), 0);
  EXPECT_THAT(Call(caller, {{}}), IsOk());
}

TEST_F(ServiceCallTest, ABusyServiceAndARefusalDoNotOpenTheBreaker) {
  options_.breaker_failures = 1;
  ServiceCaller caller = Caller();
  Attempt busy = Down();
  busy.is_busy = true;
  EXPECT_THAT(Call(caller, {busy, busy, {}}), IsOk());
  EXPECT_FALSE(Call(caller, {{.status = absl::FailedPreconditionError("404")}}).ok());
  EXPECT_THAT(Call(caller, {{}}), IsOk());
}

TEST_F(ServiceCallTest, AnAttemptThatWasNotMadeDoesNotCloseAnOpenBreaker) {
  options_.breaker_failures = 1;
  options_.breaker_pause_seconds = 10;
  options_.max_attempts = 1;
  ServiceCaller caller = Caller();
  EXPECT_FALSE(Call(caller, {Down()}).ok());
  now_ += 10;
  EXPECT_FALSE(
      Call(caller, {{.status = absl::ResourceExhaustedError("budget"), .not_made = true}}).ok());
  EXPECT_FALSE(Call(caller, {Down()}).ok()) << "still half-open: it was let through";
  EXPECT_EQ(num_made_, 1);
  EXPECT_FALSE(Call(caller, {}).ok());
  EXPECT_EQ(num_made_, 0) << "open again";
}

}  // namespace
}  // namespace tandem::trainer
