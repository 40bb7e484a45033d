#include "rollout_server/groups/admission_batches.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const AdmissionBatches::BatchRef kThree{"run", 7, 3};

GroupRequest WithKey(GroupKey key) {
  GroupRequest request;
  request.key = key;
  return request;
}

std::vector<GroupKey> Keys(const std::vector<GroupRequest>& groups) {
  std::vector<GroupKey> keys;
  for (const GroupRequest& group : groups) keys.push_back(group.key);
  return keys;
}

std::vector<GroupKey> Arrive(AdmissionBatches& batches, int64_t group_id, GroupKey key) {
  auto released = batches.Arrive(kThree, group_id, WithKey(key));
  EXPECT_THAT(released, IsOk());
  return Keys(*released);
}

TEST(AdmissionBatchesTest, HoldsGroupsUntilAllAreHereAndReleasesThemInGroupIdOrder) {
  AdmissionBatches batches;
  EXPECT_THAT(Arrive(batches, 30, 1), IsEmpty());
  EXPECT_THAT(Arrive(batches, 10, 2), IsEmpty());
  EXPECT_THAT(Arrive(batches, 20, 3), ElementsAre(2, 3, 1));
}

TEST(AdmissionBatchesTest, AWithdrawnGroupKeepsItsPlaceUntilItComesAgain) {
  AdmissionBatches batches;
  EXPECT_THAT(Arrive(batches, 10, 1), IsEmpty());
  EXPECT_TRUE(batches.Withdraw(kThree, 10));
  EXPECT_FALSE(batches.Withdraw(kThree, 10));
  EXPECT_THAT(Arrive(batches, 20, 2), IsEmpty());
  EXPECT_THAT(Arrive(batches, 30, 3), IsEmpty());
  EXPECT_THAT(Arrive(batches, 10, 4), ElementsAre(4, 2, 3));
}

TEST(AdmissionBatchesTest, AnAbortedGroupCountsAsArrived) {
  AdmissionBatches batches;
  EXPECT_THAT(Arrive(batches, 10, 1), IsEmpty());
  EXPECT_THAT(Arrive(batches, 20, 2), IsEmpty());
  EXPECT_THAT(Keys(batches.Skip(kThree, 10)), IsEmpty());
  EXPECT_THAT(Arrive(batches, 30, 3), ElementsAre(2, 3));
}

TEST(AdmissionBatchesTest, AGroupOfAReleasedBatchIsAdmittedAtOnceUntilForgotten) {
  AdmissionBatches batches;
  Arrive(batches, 10, 1);
  Arrive(batches, 20, 2);
  Arrive(batches, 30, 3);
  EXPECT_THAT(Arrive(batches, 20, 4), ElementsAre(4));
  batches.Forget("run");
  EXPECT_THAT(Arrive(batches, 20, 5), IsEmpty());
}

TEST(AdmissionBatchesTest, BatchesOfTwoRunsDoNotMix) {
  AdmissionBatches batches;
  Arrive(batches, 10, 1);
  Arrive(batches, 20, 2);
  EXPECT_THAT(Keys(*batches.Arrive({"other", 7, 3}, 30, WithKey(3))), IsEmpty());
  EXPECT_THAT(Arrive(batches, 30, 4), ElementsAre(1, 2, 4));
}

TEST(AdmissionBatchesTest, BatchesOfWhichAllWasAbortedOrWithdrawnDoNotPileUp) {
  AdmissionBatches batches;
  for (int64_t id = 0; id < 5000; ++id) {
    const AdmissionBatches::BatchRef batch{"", id, 3};
    ASSERT_THAT(batches.Arrive(batch, 1, WithKey(1)), IsOk());
    ASSERT_THAT(batches.Arrive(batch, 2, WithKey(2)), IsOk());
    batches.Skip(batch, 1);
    EXPECT_TRUE(batches.Withdraw(batch, 2));
  }
  EXPECT_LE(batches.size(), AdmissionBatches::kRememberedBatches);
}

TEST(AdmissionBatchesTest, AnAbortedGroupCountsAsArrivedWhileTheOthersAreAwayToo) {
  AdmissionBatches batches;
  Arrive(batches, 10, 1);
  Arrive(batches, 20, 2);
  batches.Skip(kThree, 10);
  EXPECT_TRUE(batches.Withdraw(kThree, 20));
  EXPECT_THAT(Arrive(batches, 20, 3), IsEmpty());
  EXPECT_THAT(Arrive(batches, 30, 4), ElementsAre(3, 4));
}

TEST(AdmissionBatchesTest, ARunThatStartsOverFindsNoAbortedGroupsOfItsFormerSelf) {
  AdmissionBatches batches;
  Arrive(batches, 10, 1);
  batches.Skip(kThree, 10);
  batches.Forget("run");
  EXPECT_EQ(batches.size(), 0u);
  EXPECT_THAT(Arrive(batches, 20, 2), IsEmpty());
  EXPECT_THAT(Arrive(batches, 30, 3), IsEmpty()) << "group 10 of this epoch has not come";
}

TEST(AdmissionBatchesTest, RefusesWhatContradictsTheFirstGroup) {
  AdmissionBatches batches;
  Arrive(batches, 10, 1);
  EXPECT_THAT(batches.Arrive({"run", 7, 0}, 20, WithKey(2)),
              FailsWith(absl::StatusCode::kInvalidArgument, "must be at least 1"));
  EXPECT_THAT(batches.Arrive({"run", 7, 4}, 20, WithKey(2)),
              FailsWith(absl::StatusCode::kInvalidArgument, "has 3 groups; group 20 says 4"));
  EXPECT_THAT(batches.Arrive(kThree, 10, WithKey(2)),
              FailsWith(absl::StatusCode::kInvalidArgument, "already"));
}

}  // namespace
}  // namespace tandem::rollout
