#include "trainer/experience/experience_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

// Two completions of three tokens, the first one or two of them under `oldest`.
ScoredGroup Group(int64_t id, int64_t oldest, int64_t newest) {
  ScoredGroup group;
  group.set_group_id(id);
  for (int i = 0; i < 2; ++i) {
    auto* const completion = group.add_completions()->mutable_completion();
    auto* span = completion->add_version_spans();
    span->set_weight_version(i == 0 ? oldest : newest);
    span->set_num_tokens(1);
    span = completion->add_version_spans();
    span->set_weight_version(newest);
    span->set_num_tokens(2);
  }
  return group;
}

int TakeAll(ExperienceBuffer& buffer) {
  int taken = 0;
  while (buffer.TakeSlot().has_value()) ++taken;
  return taken;
}

TEST(Bug36VersionTag, StalenessIsOfTheOldestSampledToken) {
  EXPECT_EQ(Staleness(Group(0, 4, 6), {7}), 3);
  EXPECT_EQ(Staleness(Group(0, 7, 7), {7}), 0);
}

TEST(ExperienceBuffer, SynchronousRunsHaveOneStepOfSlots) {
  ExperienceBuffer buffer(/*max_staleness=*/0, /*groups_per_step=*/2, 2, /*first_step=*/0);
  EXPECT_EQ(TakeAll(buffer), 2);
  ASSERT_THAT(buffer.Add(Group(1, 0, 0)), IsOk());
  EXPECT_FALSE(buffer.StepReady());
  ASSERT_THAT(buffer.Add(Group(0, 0, 0)), IsOk());
  ASSERT_TRUE(buffer.StepReady());
  const StepExperience step = buffer.TakeStep({0}, false);
  ASSERT_EQ(step.groups.size(), 2u);
  EXPECT_EQ(step.groups[0].group_id(), 0);
  EXPECT_EQ(TakeAll(buffer), 0) << "slots are free only when the servers have the new weights";
  buffer.StepInstalled();
  EXPECT_EQ(buffer.TakeSlot(), 2);
}

TEST(ExperienceBuffer, StalenessSAllowsSPlusOneStepsOfSlots) {
  ExperienceBuffer buffer(/*max_staleness=*/2, /*groups_per_step=*/3, 2, 0);
  EXPECT_EQ(TakeAll(buffer), 9);
}

TEST(ExperienceBuffer, TrainsAGroupOnceAtMost) {
  ExperienceBuffer buffer(0, 1, 2, 0);
  TakeAll(buffer);
  ASSERT_THAT(buffer.Add(Group(0, 0, 0)), IsOk());
  EXPECT_THAT(buffer.Add(Group(0, 0, 0)),
              FailsWith(absl::StatusCode::kAlreadyExists, "group 0 came before"));
  buffer.TakeStep({0}, false);
  EXPECT_THAT(buffer.Add(Group(0, 0, 0)),
              FailsWith(absl::StatusCode::kAlreadyExists, "trained once"));
  EXPECT_THAT(buffer.Drop(0, "failed"), FailsWith(absl::StatusCode::kAlreadyExists, "group 0"));
  EXPECT_THAT(buffer.Add(Group(5, 0, 0)),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no slot"));
}

TEST(ExperienceBuffer, RefusesAnIncompleteGroup) {
  ExperienceBuffer buffer(0, 1, 3, 0);
  TakeAll(buffer);
  EXPECT_THAT(buffer.Add(Group(0, 0, 0)),
              FailsWith(absl::StatusCode::kInvalidArgument, "2 of 3 completions"));
}

TEST(ExperienceBuffer, NeverTrainsOverTheStalenessBound) {
  ExperienceBuffer buffer(1, 2, 2, 0);
  TakeAll(buffer);
  ASSERT_THAT(buffer.Add(Group(0, 3, 5)), IsOk());
  ASSERT_THAT(buffer.Add(Group(1, 4, 5)), IsOk());
  const StepExperience step = buffer.TakeStep({5}, false);
  ASSERT_EQ(step.groups.size(), 1u);
  EXPECT_EQ(step.groups[0].group_id(), 1);
  ASSERT_EQ(step.dropped.size(), 1u);
  EXPECT_EQ(step.dropped[0].reason, "stale");
}

TEST(ExperienceBuffer, CountsEveryDropWithItsReason) {
  ExperienceBuffer buffer(0, 3, 2, 0);
  TakeAll(buffer);
  ScoredGroup equal = Group(0, 0, 0);
  equal.set_zero_variance(true);
  ScoredGroup masked = Group(1, 0, 0);
  for (auto& member : *masked.mutable_completions()) member.set_masked(true);
  ASSERT_THAT(buffer.Add(equal), IsOk());
  ASSERT_THAT(buffer.Add(masked), IsOk());
  ASSERT_THAT(buffer.Drop(2, "failed"), IsOk());
  const StepExperience step = buffer.TakeStep({0}, /*drop_zero_variance=*/true);
  EXPECT_TRUE(step.groups.empty());
  ASSERT_EQ(step.dropped.size(), 3u);
  EXPECT_EQ(step.dropped[0].reason, "zero_variance");
  EXPECT_EQ(step.dropped[1].reason, "all_masked");
  EXPECT_EQ(step.dropped[2].reason, "failed");
  EXPECT_TRUE(step.OnlyEqualRewards());
}

// What rewards and lengths are measured over: a choice by reward or age would bias them.
TEST(ExperienceBuffer, DroppedGroupsThatWereSampledStayInSight) {
  ExperienceBuffer buffer(0, 4, 2, 0);
  TakeAll(buffer);
  ScoredGroup equal = Group(0, 5, 5), masked = Group(2, 5, 5);
  equal.set_zero_variance(true);
  for (auto& member : *masked.mutable_completions()) member.set_masked(true);
  ASSERT_THAT(buffer.Add(equal), IsOk());
  ASSERT_THAT(buffer.Add(Group(1, 5, 5)), IsOk());
  ASSERT_THAT(buffer.Add(masked), IsOk());
  ASSERT_THAT(buffer.Drop(3, "failed"), IsOk());
  const StepExperience step = buffer.TakeStep({5}, /*drop_zero_variance=*/true);
  ASSERT_EQ(step.groups.size(), 1u);
  EXPECT_FALSE(step.OnlyEqualRewards()) << "there is one to train";
  std::vector<int64_t> ids;
  for (const ScoredGroup& group : SampledGroups(step)) ids.push_back(group.group_id());
  EXPECT_EQ(ids, (std::vector<int64_t>{0, 1, 2})) << "nothing came of 3";
}

TEST(ExperienceBuffer, AStepThatLostItsGroupsIsNotOneOfEqualRewards) {
  ExperienceBuffer buffer(0, 1, 2, 0);
  TakeAll(buffer);
  ASSERT_THAT(buffer.Drop(0, "failed"), IsOk());
  EXPECT_FALSE(buffer.TakeStep({0}, /*drop_zero_variance=*/true).OnlyEqualRewards());
}

TEST(Bug04ZeroVarianceGroups, AreKeptUnlessAskedFor) {
  ExperienceBuffer buffer(0, 1, 2, 0);
  TakeAll(buffer);
  ScoredGroup equal = Group(0, 0, 0);
  equal.set_zero_variance(true);
  ASSERT_THAT(buffer.Add(equal), IsOk());
  EXPECT_EQ(buffer.TakeStep({0}, /*drop_zero_variance=*/false).groups.size(), 1u);
}

TEST(ExperienceBuffer, GoesOnFromTheTrainedFrontier) {
  ExperienceBuffer buffer(0, 4, 2, /*first_step=*/3);
  EXPECT_EQ(buffer.TakeSlot(), 12);
  EXPECT_EQ(buffer.next_step(), 3);
  EXPECT_THAT(buffer.Add(Group(11, 0, 0)), FailsWith(absl::StatusCode::kAlreadyExists, "group 11"));
}

}  // namespace
}  // namespace tandem::trainer
