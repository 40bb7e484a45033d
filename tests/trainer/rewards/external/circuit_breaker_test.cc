#include "trainer/rewards/external/circuit_breaker.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using absl::StatusCode::kUnavailable;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

TEST(CircuitBreaker, OpensAfterFailuresInARowAndNamesTheLast) {
  CircuitBreaker breaker(/*failures=*/3, /*pause_seconds=*/10);
  EXPECT_FALSE(breaker.Failed(0, "first"));
  EXPECT_FALSE(breaker.Failed(1, "second"));
  EXPECT_THAT(breaker.Admit(1), IsOk());
  EXPECT_TRUE(breaker.Failed(2, "third"));
  EXPECT_THAT(breaker.Admit(2.5),
              FailsWith(kUnavailable,
                        "the circuit breaker is open after 3 failures in a row, it "
                        "is tried again in 10 s; the last: third"));
  EXPECT_FALSE(breaker.is_closed());
}

TEST(CircuitBreaker, ASuccessStartsTheCountAnew) {
  CircuitBreaker breaker(2, 10);
  breaker.Failed(0, "a");
  breaker.Succeeded();
  EXPECT_FALSE(breaker.Failed(1, "b"));
  EXPECT_THAT(breaker.Admit(1), IsOk());
}

TEST(CircuitBreaker, LetsOneCallTryAfterThePauseAndClosesWhenItSucceeds) {
  CircuitBreaker breaker(1, 10);
  EXPECT_TRUE(breaker.Failed(0, "down"));
  EXPECT_FALSE(breaker.Admit(9.9).ok());
  EXPECT_THAT(breaker.Admit(10), IsOk());
  EXPECT_THAT(breaker.Admit(11), FailsWith(kUnavailable, "one call tries it now"));
  breaker.Succeeded();
  EXPECT_TRUE(breaker.is_closed());
  EXPECT_THAT(breaker.Admit(11), IsOk());
  EXPECT_THAT(breaker.Admit(11), IsOk());
}

TEST(CircuitBreaker, OpensAgainForAWholePauseWhenTheTryFails) {
  CircuitBreaker breaker(1, 10);
  breaker.Failed(0, "down");
  ASSERT_THAT(breaker.Admit(12), IsOk());
  EXPECT_FALSE(breaker.Failed(13, "still down")) << "it was open: no second event";
  EXPECT_THAT(breaker.Admit(22.9), FailsWith(kUnavailable, "still down"));
  EXPECT_THAT(breaker.Admit(23), IsOk());
}

TEST(CircuitBreaker, ATryThatSaysNothingLeavesTheTryToTheNext) {
  CircuitBreaker breaker(1, 10);
  breaker.Failed(0, "down");
  ASSERT_THAT(breaker.Admit(10), IsOk());
  breaker.GaveUp();
  EXPECT_THAT(breaker.Admit(10), IsOk());
}

TEST(CircuitBreaker, NeverOpensWithoutALimit) {
  CircuitBreaker breaker(0, 10);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(breaker.Failed(i, "down"));
  EXPECT_THAT(breaker.Admit(100), IsOk());
}

}  // namespace
}  // namespace tandem::trainer
