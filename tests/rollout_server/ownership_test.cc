#include "rollout_server/ownership.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

class OwnershipTest : public ::testing::Test {
 protected:
  double now_ = 100;
  Ownership ownership_{[this] { return now_; }, 60};
};

TEST_F(OwnershipTest, ASecondRunIsRefusedWithTheOwnersNameAndTheTimeLeft) {
  EXPECT_TRUE(*ownership_.Claim("one", 1, 0));
  now_ += 50;
  EXPECT_THAT(ownership_.Claim("two", 1, 0),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        "run 'one' owns this server for another 10.0 s"));
  EXPECT_THAT(ownership_.CheckUser("two"),
              FailsWith(absl::StatusCode::kFailedPrecondition, "run 'one' owns"));
}

TEST_F(OwnershipTest, EveryCallOfTheOwnerRenewsTheLease) {
  EXPECT_THAT(ownership_.Claim("one", 1, 1000), IsOk());
  now_ += 0.75;
  EXPECT_THAT(ownership_.CheckOwner("one"), IsOk());
  now_ += 0.75;
  EXPECT_THAT(ownership_.CheckUser("one"), IsOk());
  now_ += 0.75;
  EXPECT_EQ(ownership_.owner(), "one");
  now_ += 0.5;
  EXPECT_EQ(ownership_.owner(), "");
  EXPECT_TRUE(*ownership_.Claim("two", 1, 0));
}

TEST_F(OwnershipTest, AGuestIsServedAndRenewsNothing) {
  EXPECT_THAT(ownership_.Claim("one", 1, 1000), IsOk());
  now_ += 0.75;
  EXPECT_THAT(ownership_.CheckUser(""), IsOk());
  now_ += 0.5;
  EXPECT_EQ(ownership_.owner(), "");
}

TEST_F(OwnershipTest, RemembersTheHighestVersionItsOwnerAskedForUnderThisEpoch) {
  ownership_.NoteAsked("one", 9);
  EXPECT_FALSE(ownership_.claim().has_value());
  EXPECT_THAT(ownership_.Claim("one", 1, 1000), IsOk());
  EXPECT_FALSE(ownership_.claim()->has_asked)
      << "what it asked while nobody owned the server is not held against it";
  for (const int64_t version : {4, 7, 5}) ownership_.NoteAsked("one", version);
  ownership_.NoteAsked("", 100);
  EXPECT_TRUE(ownership_.claim()->has_asked);
  EXPECT_EQ(ownership_.claim()->highest_min_version, 7);
  EXPECT_THAT(ownership_.Claim("one", 2, 1000), IsOk());
  EXPECT_EQ(ownership_.claim()->epoch, 2);
  EXPECT_EQ(ownership_.claim()->highest_min_version, 0);
  now_ += 2;
  EXPECT_FALSE(ownership_.claim().has_value()) << "the lease ended";
}

TEST_F(OwnershipTest, ReleaseGivesTheServerToTheNextRun) {
  EXPECT_THAT(ownership_.Claim("one", 5, 0), IsOk());
  EXPECT_THAT(ownership_.Release("two"), FailsWith(absl::StatusCode::kFailedPrecondition, "one"));
  EXPECT_THAT(ownership_.Release("one"), IsOk());
  EXPECT_THAT(ownership_.Release("one"), IsOk());
  EXPECT_THAT(ownership_.Claim("two", 1, 0), IsOk());
}

TEST_F(OwnershipTest, ARepeatedClaimIsNotNewAndAnEpochOnlyRises) {
  EXPECT_TRUE(*ownership_.Claim("one", 2, 0));
  EXPECT_FALSE(*ownership_.Claim("one", 2, 0));
  EXPECT_TRUE(*ownership_.Claim("one", 3, 0));
  EXPECT_THAT(ownership_.Claim("one", 2, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, "epoch 2 of run 'one' is below"));
  EXPECT_THAT(ownership_.CheckEpoch("one", 3), IsOk());
  EXPECT_THAT(ownership_.CheckEpoch("one", 2),
              FailsWith(absl::StatusCode::kFailedPrecondition, "epoch 2 is not the live epoch 3"));
}

TEST_F(OwnershipTest, RefusesAnEmptyRunAnEpochBelowOneAndANegativeLease) {
  EXPECT_THAT(ownership_.Claim("", 1, 0), FailsWith(absl::StatusCode::kInvalidArgument, "run_id"));
  EXPECT_THAT(ownership_.Claim("one", 0, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, "epoch is 0"));
  EXPECT_THAT(ownership_.Claim("one", 1, -1),
              FailsWith(absl::StatusCode::kInvalidArgument, "lease_ms is -1"));
  EXPECT_THAT(ownership_.CheckOwner("one"),
              FailsWith(absl::StatusCode::kFailedPrecondition, "call InitTransfer"));
}

}  // namespace
}  // namespace tandem::rollout
