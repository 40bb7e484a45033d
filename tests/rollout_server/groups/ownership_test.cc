#include "rollout_server/groups/ownership.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

// A process of the run `run_id`, with a secret of its own.
CallerProof Of(const std::string& run_id) {
  return {.run_id = run_id, .secret = "the secret of the process that is run " + run_id};
}

class OwnershipTest : public ::testing::Test {
 protected:
  double now_ = 100;
  Ownership ownership_{[this] { return now_; }, 60};
};

TEST_F(OwnershipTest, ASecondRunIsRefusedWithTheOwnersNameAndTheTimeLeft) {
  EXPECT_TRUE(*ownership_.Claim(Of("one"), 1, 0));
  now_ += 50;
  EXPECT_THAT(ownership_.Claim(Of("two"), 1, 0),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        "run 'one' owns this server for another 10.0 s"));
  EXPECT_THAT(ownership_.CheckUser(Of("two")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "run 'one' owns"));
}

TEST_F(OwnershipTest, EveryCallOfTheOwnerRenewsTheLease) {
  EXPECT_THAT(ownership_.Claim(Of("one"), 1, 1000), IsOk());
  now_ += 0.75;
  EXPECT_THAT(ownership_.CheckOwner(Of("one")), IsOk());
  now_ += 0.75;
  EXPECT_EQ(*ownership_.CheckUser(Of("one")), Standing::kOwner);
  now_ += 0.75;
  EXPECT_EQ(ownership_.owner(), "one");
  now_ += 0.5;
  EXPECT_EQ(ownership_.owner(), "");
  EXPECT_TRUE(*ownership_.Claim(Of("two"), 1, 0));
}

TEST_F(OwnershipTest, AClientWithoutOwnershipIsServedAndRenewsNothing) {
  EXPECT_THAT(ownership_.Claim(Of("one"), 1, 1000), IsOk());
  now_ += 0.75;
  EXPECT_EQ(*ownership_.CheckUser(Of("")), Standing::kNotOwner);
  now_ += 0.5;
  EXPECT_EQ(ownership_.owner(), "");
}

TEST_F(OwnershipTest, RemembersTheHighestVersionItsOwnerAskedForUnderThisEpoch) {
  ownership_.NoteAsked(Of("one"), 9);
  EXPECT_FALSE(ownership_.claim().has_value());
  EXPECT_THAT(ownership_.Claim(Of("one"), 1, 1000), IsOk());
  EXPECT_FALSE(ownership_.claim()->has_asked)
      << "what it asked while nobody owned the server is not held against it";
  for (const int64_t version : {4, 7, 5}) ownership_.NoteAsked(Of("one"), version);
  ownership_.NoteAsked(Of(""), 100);
  EXPECT_TRUE(ownership_.claim()->has_asked);
  EXPECT_EQ(ownership_.claim()->highest_min_version, 7);
  EXPECT_THAT(ownership_.Claim(Of("one"), 2, 1000), IsOk());
  EXPECT_EQ(ownership_.claim()->epoch, 2);
  EXPECT_EQ(ownership_.claim()->highest_min_version, 0);
  now_ += 2;
  EXPECT_FALSE(ownership_.claim().has_value()) << "the lease ended";
}

TEST_F(OwnershipTest, ReleaseGivesTheServerToTheNextRun) {
  EXPECT_THAT(ownership_.Claim(Of("one"), 5, 0), IsOk());
  EXPECT_THAT(ownership_.Release(Of("two")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "one"));
  EXPECT_THAT(ownership_.Release(Of("one")), IsOk());
  EXPECT_THAT(ownership_.Release(Of("one")), IsOk());
  EXPECT_THAT(ownership_.Claim(Of("two"), 1, 0), IsOk());
}

TEST_F(OwnershipTest, ARepeatedClaimIsNotNewAndAnEpochOnlyRises) {
  EXPECT_TRUE(*ownership_.Claim(Of("one"), 2, 0));
  EXPECT_FALSE(*ownership_.Claim(Of("one"), 2, 0));
  EXPECT_TRUE(*ownership_.Claim(Of("one"), 3, 0));
  EXPECT_THAT(ownership_.Claim(Of("one"), 2, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, "epoch 2 of run 'one' is below"));
  EXPECT_THAT(ownership_.CheckEpoch(Of("one"), 3), IsOk());
  EXPECT_THAT(ownership_.CheckEpoch(Of("one"), 2),
              FailsWith(absl::StatusCode::kFailedPrecondition, "epoch 2 is not the live epoch 3"));
}

TEST_F(OwnershipTest, RefusesAnEmptyRunAnEpochBelowOneAndANegativeLease) {
  EXPECT_THAT(ownership_.Claim(Of(""), 1, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, "run_id"));
  EXPECT_THAT(ownership_.Claim(Of("one"), 0, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, "epoch is 0"));
  EXPECT_THAT(ownership_.Claim(Of("one"), 1, -1),
              FailsWith(absl::StatusCode::kInvalidArgument, "lease_ms is -1"));
  EXPECT_THAT(ownership_.Claim(Of("one"), 1, 86'400'001),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "lease_ms is 86400001, must be in [0, 86400000]"));
  EXPECT_THAT(ownership_.Claim(Of("\x1b[2J"), 1, 0),
              FailsWith(absl::StatusCode::kInvalidArgument, "run_id has control characters"));
  EXPECT_THAT(ownership_.CheckOwner(Of("one")),
              FailsWith(absl::StatusCode::kFailedPrecondition, "call InitTransfer"));
  EXPECT_EQ(*ownership_.CheckUser(Of("one")), Standing::kUnowned);
}

TEST_F(OwnershipTest, AClaimNeedsASecretThatCannotBeGuessed) {
  for (const size_t size : {0, 1, 31, 257}) {
    EXPECT_THAT(ownership_.Claim({.run_id = "one", .secret = std::string(size, 's')}, 1, 0),
                FailsWith(absl::StatusCode::kInvalidArgument, "secret"))
        << size;
  }
  EXPECT_THAT(ownership_.Claim({.run_id = "one", .secret = std::string(32, 's')}, 1, 0), IsOk());
}

// Each method, called with the owner's name and not its proof.
TEST_F(OwnershipTest, TheRunIdAloneOpensNothingAndRenewsNothing) {
  CallerProof owner = Of("one"), other_secret = owner, no_secret = owner, other_certificate = owner;
  owner.certificate = other_secret.certificate = no_secret.certificate =
      "spiffe://x/tandem/trainer";
  other_certificate.certificate = "spiffe://x/tandem/trainer/2";
  other_secret.secret.back() = '!';
  no_secret.secret.clear();
  ASSERT_THAT(ownership_.Claim(owner, 3, 1000), IsOk());
  now_ += 0.75;
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  for (const CallerProof& who : {other_secret, other_certificate, no_secret}) {
    if (!who.secret.empty()) {
      EXPECT_THAT(ownership_.Claim(who, 4, 0), FailsWith(kDenied, "for another 0.2 s"));
    }
    EXPECT_THAT(ownership_.Release(who), FailsWith(kDenied, "run 'one' owns this server"));
    EXPECT_THAT(ownership_.CheckOwner(who), FailsWith(kDenied, "that it was claimed with"));
    EXPECT_THAT(ownership_.CheckEpoch(who, 3), FailsWith(kDenied, "that it was claimed with"));
    EXPECT_THAT(ownership_.CheckUser(who),
                FailsWith(kDenied, "clients without ownership leave run_id empty"));
    ownership_.NoteAsked(who, int64_t{1} << 62);
  }
  EXPECT_THAT(ownership_.CheckUser(other_secret), FailsWith(kDenied, "does not show the secret"));
  EXPECT_THAT(ownership_.CheckUser(other_certificate), FailsWith(kDenied, "another certificate"));
  EXPECT_EQ(ownership_.claim()->epoch, 3);
  EXPECT_FALSE(ownership_.claim()->has_asked);
  now_ += 0.5;
  EXPECT_EQ(ownership_.owner(), "") << "only the claim counted for the lease";
  EXPECT_THAT(ownership_.Claim(other_secret, 1, 0), IsOk());
}

TEST(ScopeOfTest, TellsCallersApartByCertificateAndSecret) {
  const CallerProof one = {.certificate = "a", .secret = "b"};
  EXPECT_EQ(ScopeOf(one).size(), 64u);
  EXPECT_EQ(ScopeOf(one), ScopeOf({.run_id = "any", .certificate = "a", .secret = "b"}));
  EXPECT_NE(ScopeOf(one), ScopeOf({.certificate = "ab", .secret = ""}));
  EXPECT_NE(ScopeOf(one), ScopeOf({.certificate = "", .secret = "b"}));
  EXPECT_EQ(ScopeOf({.run_id = "any"}), "");
}

}  // namespace
}  // namespace tandem::rollout
