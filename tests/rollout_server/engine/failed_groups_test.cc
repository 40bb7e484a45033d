#include "rollout_server/engine/failed_groups.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

class FailedGroupsTest : public ::testing::Test {
 protected:
  FailedGroupsTest() {
    group_.request.key = 7;
    sequence_.group = &group_;
    sequence_.completion.index = 2;
    sequence_.completion.token_ids = {10, 11, 12};
  }

  RunningGroup group_, other_;
  Sequence sequence_;
  FailedGroups failed_;
};

TEST_F(FailedGroupsTest, NamesTheCauseTheCompletionAndTheToken) {
  failed_.Add(sequence_, GroupFailure::kText, absl::InternalError("no such id"));
  ASSERT_EQ(failed_.events().size(), 1u);
  EXPECT_EQ(failed_.events()[0].key, 7);
  EXPECT_EQ(failed_.events()[0].cause, GroupFailure::kText);
  EXPECT_THAT(failed_.events()[0].status,
              FailsWith(absl::StatusCode::kDataLoss,
                        "the group failed (text) and the server goes on: completion 2, token 3: no "
                        "such id"));
  EXPECT_TRUE(failed_.Has(&group_));
  EXPECT_FALSE(failed_.Has(&other_));
}

TEST_F(FailedGroupsTest, OfEachGroupTheFirstFailureCounts) {
  EXPECT_THAT(failed_.AddUndrawn(sequence_, absl::FailedPreconditionError("nothing is left")),
              IsOk());
  EXPECT_THAT(failed_.AddUndrawn(sequence_, absl::DataLossError("NaN")), IsOk());
  ASSERT_EQ(failed_.events().size(), 1u);
  EXPECT_EQ(failed_.events()[0].cause, GroupFailure::kNothingToDraw);
}

TEST_F(FailedGroupsTest, ALogitThatIsNotFiniteIsTheGroups) {
  EXPECT_THAT(failed_.AddUndrawn(sequence_, absl::DataLossError("NaN")), IsOk());
  EXPECT_EQ(failed_.events()[0].cause, GroupFailure::kNonFiniteLogits);
}

TEST_F(FailedGroupsTest, AnErrorOfTheRunnerIsTheEngines) {
  EXPECT_THAT(failed_.AddUndrawn(sequence_, absl::InternalError("the kernel left no state")),
              FailsWith(absl::StatusCode::kInternal, "left no state"));
  EXPECT_TRUE(failed_.events().empty());
}

}  // namespace
}  // namespace tandem::rollout
