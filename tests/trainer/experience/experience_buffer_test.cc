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

// S, P and whether groups of equal rewards are dropped.
BufferOptions Options(int64_t max_staleness, int64_t groups_per_step, bool drop_equal = false) {
  return {.max_staleness = max_staleness,
          .groups_per_step = groups_per_step,
          .drop_zero_variance = drop_equal};
}

BufferOptions Refilling(int64_t groups_per_step, double max_factor = 4) {
  BufferOptions options = Options(0, groups_per_step, /*drop_equal=*/true);
  options.sampling = {.refill = true, .max_factor = max_factor};
  return options;
}

ScoredGroup Equal(int64_t id, int64_t version = 0) {
  ScoredGroup group = Group(id, version, version);
  group.set_zero_variance(true);
  return group;
}

// Takes every free slot for groups of two completions.
int TakeAll(ExperienceBuffer& buffer, WeightVersion version = {0}) {
  int taken = 0;
  for (; buffer.FreeSlots(version) > 0; ++taken) buffer.TakeSlot(2);
  return taken;
}

std::vector<int64_t> Ids(const std::vector<ScoredGroup>& groups) {
  std::vector<int64_t> ids;
  for (const ScoredGroup& group : groups) ids.push_back(group.group_id());
  return ids;
}

std::vector<std::string> Reasons(const StepExperience& step) {
  std::vector<std::string> reasons;
  for (const DroppedGroup& dropped : step.dropped) reasons.push_back(dropped.reason);
  return reasons;
}

TEST(Bug36VersionTag, StalenessIsOfTheOldestSampledToken) {
  EXPECT_EQ(Staleness(Group(0, 4, 6), {7}), 3);
  EXPECT_EQ(Staleness(Group(0, 7, 7), {7}), 0);
}

TEST(ExperienceBuffer, SynchronousRunsHaveOneStepOfSlots) {
  ExperienceBuffer buffer(Options(0, 2), {});
  EXPECT_EQ(TakeAll(buffer), 2);
  ASSERT_THAT(buffer.Add(Group(1, 0, 0)), IsOk());
  EXPECT_FALSE(buffer.StepReady({0}));
  ASSERT_THAT(buffer.Add(Group(0, 0, 0)), IsOk());
  ASSERT_TRUE(buffer.StepReady({0}));
  const StepExperience step = buffer.TakeStep({0});
  ASSERT_EQ(step.groups.size(), 2u);
  EXPECT_EQ(step.groups[0].group_id(), 0);
  EXPECT_EQ(TakeAll(buffer), 0) << "slots are free only when the servers have the new weights";
  buffer.StepInstalled();
  EXPECT_EQ(buffer.FreeSlots({1}), 2);
  EXPECT_EQ(buffer.TakeSlot(2), 2);
}

TEST(ExperienceBuffer, StalenessSAllowsSPlusOneStepsOfSlots) {
  ExperienceBuffer buffer(Options(2, 3), {});
  EXPECT_EQ(TakeAll(buffer), 9);
}

TEST(ExperienceBuffer, TrainsAGroupOnceAtMost) {
  ExperienceBuffer buffer(Options(0, 1), {});
  TakeAll(buffer);
  ASSERT_THAT(buffer.Add(Group(0, 0, 0)), IsOk());
  EXPECT_THAT(buffer.Add(Group(0, 0, 0)),
              FailsWith(absl::StatusCode::kAlreadyExists, "group 0 came before"));
  buffer.TakeStep({0});
  EXPECT_THAT(buffer.Add(Group(0, 0, 0)),
              FailsWith(absl::StatusCode::kAlreadyExists, "trained once"));
  EXPECT_THAT(buffer.Drop(0, "failed"), FailsWith(absl::StatusCode::kAlreadyExists, "group 0"));
  EXPECT_THAT(buffer.Add(Group(5, 0, 0)),
              FailsWith(absl::StatusCode::kFailedPrecondition, "no slot"));
}

TEST(ExperienceBuffer, RefusesAnIncompleteGroup) {
  ExperienceBuffer buffer(Options(0, 1), {});
  buffer.TakeSlot(3);
  EXPECT_THAT(buffer.Add(Group(0, 0, 0)),
              FailsWith(absl::StatusCode::kInvalidArgument, "2 of 3 completions"));
}

TEST(ExperienceBuffer, NeverTrainsOverTheStalenessBound) {
  ExperienceBuffer buffer(Options(1, 2), {});
  TakeAll(buffer, {5});
  ASSERT_THAT(buffer.Add(Group(0, 3, 5)), IsOk());
  ASSERT_THAT(buffer.Add(Group(1, 4, 5)), IsOk());
  const StepExperience step = buffer.TakeStep({5});
  ASSERT_EQ(step.groups.size(), 1u);
  EXPECT_EQ(step.groups[0].group_id(), 1);
  ASSERT_EQ(step.dropped.size(), 1u);
  EXPECT_EQ(step.dropped[0].reason, "stale");
}

TEST(ExperienceBuffer, CountsEveryDropWithItsReason) {
  ExperienceBuffer buffer(Options(0, 3, /*drop_equal=*/true), {});
  TakeAll(buffer);
  ScoredGroup equal = Group(0, 0, 0);
  equal.set_zero_variance(true);
  ScoredGroup masked = Group(1, 0, 0);
  for (auto& member : *masked.mutable_completions()) {
    member.set_masked(true);
    member.set_drop_reason("reward_failed: http: 404");
  }
  ASSERT_THAT(buffer.Add(equal), IsOk());
  ASSERT_THAT(buffer.Add(masked), IsOk());
  ASSERT_THAT(buffer.Drop(2, "failed"), IsOk());
  const StepExperience step = buffer.TakeStep({0});
  EXPECT_TRUE(step.groups.empty());
  ASSERT_EQ(step.dropped.size(), 3u);
  EXPECT_EQ(step.dropped[0].reason, "zero_variance");
  EXPECT_EQ(step.dropped[1].reason, "all_masked");
  EXPECT_EQ(step.dropped[1].message, "reward_failed: http: 404");
  EXPECT_EQ(step.dropped[2].reason, "failed");
  EXPECT_TRUE(step.OnlyEqualRewards());
}

// What rewards and lengths are measured over: a choice by reward or age would bias them.
TEST(ExperienceBuffer, DroppedGroupsThatWereSampledStayInSight) {
  ExperienceBuffer buffer(Options(0, 4, /*drop_equal=*/true), {});
  TakeAll(buffer);
  ScoredGroup equal = Group(0, 5, 5), masked = Group(2, 5, 5);
  equal.set_zero_variance(true);
  for (auto& member : *masked.mutable_completions()) member.set_masked(true);
  ASSERT_THAT(buffer.Add(equal), IsOk());
  ASSERT_THAT(buffer.Add(Group(1, 5, 5)), IsOk());
  ASSERT_THAT(buffer.Add(masked), IsOk());
  ASSERT_THAT(buffer.Drop(3, "failed"), IsOk());
  const StepExperience step = buffer.TakeStep({5});
  ASSERT_EQ(step.groups.size(), 1u);
  EXPECT_FALSE(step.OnlyEqualRewards()) << "there is one to train";
  std::vector<int64_t> ids;
  for (const ScoredGroup& group : SampledGroups(step)) ids.push_back(group.group_id());
  EXPECT_EQ(ids, (std::vector<int64_t>{0, 1, 2})) << "nothing came of 3";
}

TEST(ExperienceBuffer, AStepThatLostItsGroupsIsNotOneOfEqualRewards) {
  ExperienceBuffer buffer(Options(0, 1, /*drop_equal=*/true), {});
  TakeAll(buffer);
  ASSERT_THAT(buffer.Drop(0, "failed"), IsOk());
  EXPECT_FALSE(buffer.TakeStep({0}).OnlyEqualRewards());
}

TEST(Bug04ZeroVarianceGroups, AreKeptUnlessAskedFor) {
  ExperienceBuffer buffer(Options(0, 1), {});
  TakeAll(buffer);
  ScoredGroup equal = Group(0, 0, 0);
  equal.set_zero_variance(true);
  ASSERT_THAT(buffer.Add(equal), IsOk());
  EXPECT_EQ(buffer.TakeStep({0}).groups.size(), 1u);
}

TEST(ExperienceBuffer, GoesOnFromTheTrainedFrontier) {
  ExperienceBuffer buffer(Options(0, 4), {.step = 3, .group = 12});
  EXPECT_EQ(buffer.TakeSlot(2), 12);
  EXPECT_EQ(buffer.frontier().step, 3);
  EXPECT_THAT(buffer.Add(Group(11, 0, 0)), FailsWith(absl::StatusCode::kAlreadyExists, "group 11"));
}

TEST(DynamicSampling, RefillsWithAnotherGroupForEachOfEqualRewards) {
  ExperienceBuffer buffer(Refilling(2), {});
  EXPECT_EQ(TakeAll(buffer), 2);
  ASSERT_THAT(buffer.Add(Equal(0)), IsOk());
  EXPECT_FALSE(buffer.StepReady({0}));
  EXPECT_EQ(TakeAll(buffer), 1) << "group 2, in the place of group 0";
  ASSERT_THAT(buffer.Add(Group(1, 0, 0)), IsOk());
  EXPECT_FALSE(buffer.StepReady({0})) << "one of two";
  EXPECT_EQ(TakeAll(buffer), 0);
  ASSERT_THAT(buffer.Add(Group(2, 0, 0)), IsOk());
  ASSERT_TRUE(buffer.StepReady({0}));
  const StepExperience step = buffer.TakeStep({0});
  EXPECT_EQ(Ids(step.groups), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(Reasons(step), (std::vector<std::string>{"zero_variance"}));
  EXPECT_EQ(SampledGroups(step).size(), 3u) << "metrics are of all that were sampled";
  EXPECT_EQ(buffer.frontier().group, 3);
  EXPECT_EQ(buffer.frontier().step, 1);
  buffer.StepInstalled();
  EXPECT_EQ(TakeAll(buffer, {1}), 2);
  EXPECT_EQ(buffer.next_group(), 5);
}

TEST(DynamicSampling, WhatIsTakenDoesNotDependOnTheOrderOfArrival) {
  for (const bool forwards : {true, false}) {
    ExperienceBuffer buffer(Refilling(2), {});
    // Groups 0 and 3 have equal rewards.
    const auto group = [](int64_t id) { return id % 3 == 0 ? Equal(id) : Group(id, 0, 0); };
    std::vector<int64_t> asked;
    while (!buffer.StepReady({0})) {
      for (; buffer.FreeSlots({0}) > 0;) asked.push_back(buffer.TakeSlot(2));
      const auto next = forwards ? asked.begin() : asked.end() - 1;
      ASSERT_THAT(buffer.Add(group(*next)), IsOk());
      asked.erase(next);
    }
    EXPECT_EQ(Ids(buffer.TakeStep({0}).groups), (std::vector<int64_t>{1, 2}));
  }
}

TEST(DynamicSampling, AStepEndsAtMaxFactorWithWhatItHas) {
  ExperienceBuffer buffer(Refilling(2, /*max_factor=*/2), {});
  for (int64_t id = 0; id < 4; ++id) {
    TakeAll(buffer);
    EXPECT_FALSE(buffer.StepReady({0}));
    ASSERT_THAT(buffer.Add(id == 1 ? Group(id, 0, 0) : Equal(id)), IsOk());
  }
  EXPECT_EQ(TakeAll(buffer), 0);
  ASSERT_TRUE(buffer.StepReady({0}));
  EXPECT_EQ(Ids(buffer.TakeStep({0}).groups), (std::vector<int64_t>{1}));
  EXPECT_EQ(buffer.frontier().group, 4);
}

TEST(DynamicSampling, AGroupThatFailedIsReplacedToo) {
  ExperienceBuffer buffer(Refilling(1), {});
  TakeAll(buffer);
  ASSERT_THAT(buffer.Drop(0, "failed"), IsOk());
  EXPECT_EQ(TakeAll(buffer), 1);
  ASSERT_THAT(buffer.Add(Group(1, 0, 0)), IsOk());
  const StepExperience step = buffer.TakeStep({0});
  EXPECT_EQ(Ids(step.groups), (std::vector<int64_t>{1}));
  EXPECT_EQ(step.dropped[0].num_asked, 2);
}

TEST(DynamicSampling, RefillKeepsTheStalenessBound) {
  BufferOptions options = Refilling(2);
  options.max_staleness = 1;
  ExperienceBuffer buffer(options, {});
  EXPECT_EQ(TakeAll(buffer), 4) << "this step and the next";
  ASSERT_THAT(buffer.Add(Equal(3)), IsOk());
  EXPECT_EQ(TakeAll(buffer), 1);
  for (const int64_t id : {0, 1}) ASSERT_THAT(buffer.Add(Group(id, 0, 0)), IsOk());
  EXPECT_EQ(Ids(buffer.TakeStep({0}).groups), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(TakeAll(buffer), 0) << "not before what they made is installed";
  buffer.StepInstalled();
  EXPECT_EQ(TakeAll(buffer, {1}), 2);
  for (const int64_t id : {2, 4}) ASSERT_THAT(buffer.Add(Group(id, 0, 0)), IsOk());
  const StepExperience second = buffer.TakeStep({1});
  EXPECT_EQ(Ids(second.groups), (std::vector<int64_t>{2, 4})) << "one version old";
  EXPECT_EQ(Reasons(second), (std::vector<std::string>{"zero_variance"}));
}

TEST(DynamicSampling, AStaleGroupIsReplaced) {
  BufferOptions options = Refilling(1);
  options.max_staleness = 1;
  ExperienceBuffer buffer(options, {});
  TakeAll(buffer, {5});
  ASSERT_THAT(buffer.Add(Group(0, 3, 5)), IsOk());
  EXPECT_FALSE(buffer.StepReady({5}));
  EXPECT_EQ(TakeAll(buffer, {5}), 1);
  ASSERT_THAT(buffer.Add(Group(1, 4, 5)), IsOk());
  EXPECT_EQ(Reasons(buffer.TakeStep({5})), (std::vector<std::string>{"stale"}));
}

TEST(Oversampling, AStepTakesTheFirstThatAreThereAndDropsTheRest) {
  BufferOptions options = Refilling(2);
  options.sampling.oversampling = 2;
  ExperienceBuffer buffer(options, {});
  EXPECT_EQ(TakeAll(buffer), 4);
  ASSERT_THAT(buffer.Add(Group(2, 0, 0)), IsOk());
  ASSERT_THAT(buffer.Add(Group(0, 0, 0)), IsOk());
  ASSERT_TRUE(buffer.StepReady({0}));
  const StepExperience step = buffer.TakeStep({0});
  EXPECT_EQ(Ids(step.groups), (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(Reasons(step), (std::vector<std::string>{"not_needed", "not_needed"}));
  EXPECT_EQ(buffer.frontier().group, 4) << "group 3 would be stale at the next step";
  EXPECT_FALSE(buffer.IsOpen(1));
}

TEST(Oversampling, WhatIsFreshEnoughIsLeftForTheNextStep) {
  BufferOptions options = Refilling(2);
  options.max_staleness = 1;
  options.sampling.oversampling = 1.5;
  ExperienceBuffer buffer(options, {});
  EXPECT_EQ(TakeAll(buffer), 6);
  for (const int64_t id : {0, 1, 2}) ASSERT_THAT(buffer.Add(Group(id, 0, 0)), IsOk());
  EXPECT_EQ(Ids(buffer.TakeStep({0}).groups), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(buffer.frontier().group, 2);
  EXPECT_EQ(buffer.num_waiting(), 1);
}

TEST(GroupSizes, AGroupIsWholeWithItsOwnNumberOfCompletions) {
  ExperienceBuffer buffer(Options(0, 2), {});
  buffer.TakeSlot(2);
  buffer.TakeSlot(1);
  ASSERT_THAT(buffer.Add(Group(0, 0, 0)), IsOk());
  EXPECT_THAT(buffer.Add(Group(1, 0, 0)), FailsWith(absl::StatusCode::kInvalidArgument, "2 of 1"));
  buffer.Extend(1, 2);
  EXPECT_THAT(buffer.Add(Group(1, 0, 0)), IsOk());
}

}  // namespace
}  // namespace tandem::trainer
