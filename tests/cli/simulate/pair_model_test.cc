#include "cli/simulate/pair_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::simulate {
namespace {

using ::tandem::testing::FailsWith;

// One group of one completion a step, 0.1 s a token; 2 s to train, 0.5 s to push.
PairPlan Plan(int64_t length, int64_t max_staleness) {
  PairPlan plan;
  plan.steps = 12;
  plan.prompts_per_step = 1;
  plan.max_staleness = max_staleness;
  plan.server.knots = {{1, 0.1}};
  plan.work = [length](int64_t) { return GroupWork{.lengths = {length}}; };
  plan.trainer = [](int64_t, const Sampled&) {
    return TrainerSeconds{
        .compute = 1.5, .reduce = 0.5, .prepare = 0.2, .send = 0.2, .install = 0.1};
  };
  return plan;
}

TEST(PairModel, AtStalenessZeroAStepIsSamplingAndTrainingAndPush) {
  const PairResult result = *SimulatePair(Plan(/*length=*/11, /*max_staleness=*/0));
  ASSERT_EQ(result.steps.size(), 12u);
  for (const StepTimes& step : result.steps) {
    EXPECT_NEAR(step.rollout, 1, 1e-9);
    EXPECT_NEAR(step.train, 2, 1e-9);
    EXPECT_NEAR(step.push, 0.5, 1e-9);
    EXPECT_NEAR(step.step(), 3.5, 1e-9);
    EXPECT_EQ(step.max_staleness, 0);
  }
  EXPECT_NEAR(result.seconds, 12 * 3.5, 1e-9);
  EXPECT_NEAR(result.server_busy_seconds[0], 12, 1e-9);
}

TEST(PairModel, AtStalenessOneSamplingHidesBehindTrainingOnceThePipeIsFull) {
  const PairResult result = *SimulatePair(Plan(11, 1));
  EXPECT_NEAR(result.steps[0].rollout, 1, 1e-9);
  for (size_t i = 1; i < result.steps.size(); ++i) {
    EXPECT_NEAR(result.steps[i].rollout, 0, 1e-9);
    EXPECT_NEAR(result.steps[i].step(), 2.5, 1e-9);
    EXPECT_EQ(result.steps[i].max_staleness, 1);
  }
}

TEST(PairModel, AtStalenessOneTheSlowerOfServerAndTrainerSetsThePace) {
  PairPlan plan = Plan(/*length=*/41, 1);  // 4 s
  plan.groups_in_flight = 1;               // one after the other
  const PairResult result = *SimulatePair(plan);
  EXPECT_NEAR(MeanOf(result, 2).period(), 4, 1e-9);
  EXPECT_NEAR(result.steps.back().rollout, 1.5, 1e-9);
}

TEST(PairModel, WithRoomForTwoGroupsTheWayThroughThePipeSetsThePace) {
  // Group k starts when step k - 2 is installed and is ready 4 s later: every two steps take 4
  // + 2.5 s.
  const PairResult result = *SimulatePair(Plan(41, 1));
  EXPECT_NEAR(MeanOf(result, 2).period(), 3.25, 1e-9);
}

TEST(PairModel, SlotsAreNeverMoreThanTheBoundAndNoGroupIsTrainedTwice) {
  PairPlan plan = Plan(11, 3);
  plan.prompts_per_step = 4;
  std::vector<int64_t> asked;
  plan.work = [&asked](int64_t group) {
    asked.push_back(group);
    return GroupWork{.lengths = {1 + 37 * (group % 5), 2}};
  };
  const PairResult result = *SimulatePair(plan);
  int64_t most = 0, trained = 0;
  for (const StepTimes& step : result.steps) {
    most = std::max(most, step.slots_taken);
    trained += step.sampled.tokens;
    EXPECT_LE(step.max_staleness, 3);
  }
  EXPECT_EQ(most, 16);  // (S + 1) P
  // Every id once, in order: (12 + S) steps' worth, of which the last S are not trained on.
  std::vector<int64_t> all(asked.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(asked, all);
  EXPECT_EQ(asked.size(), 4u * (12 + 3 + 1));
  int64_t expected = 0;
  for (int64_t group = 0; group < 48; ++group) expected += 1 + 37 * (group % 5) + 2;
  EXPECT_EQ(trained, expected);
}

TEST(PairModel, AStepWaitsForItsOwnGroupsOnly) {
  PairPlan plan = Plan(11, 1);
  // Group 1 is long: step 0 trains on group 0 at 1 s; step 1 waits for it until 6 s.
  plan.work = [](int64_t group) { return GroupWork{.lengths = {group == 1 ? 61 : 11}}; };
  const PairResult result = *SimulatePair(plan);
  EXPECT_NEAR(result.steps[0].rollout, 1, 1e-9);
  EXPECT_NEAR(result.steps[1].rollout, 6 - 3.5, 1e-9);
  EXPECT_NEAR(result.steps[2].rollout, 0, 1e-9);
}

TEST(PairModel, TwoServersShareTheGroups) {
  PairPlan plan = Plan(11, 0);
  plan.prompts_per_step = 4;
  plan.groups_in_flight = 1;
  plan.steps = 1;
  EXPECT_NEAR(SimulatePair(plan)->steps[0].rollout, 4, 1e-9);
  plan.servers = 2;
  EXPECT_NEAR(SimulatePair(plan)->steps[0].rollout, 2, 1e-9);
}

TEST(PairModel, ALostServersGroupStartsAnewAtAnother) {
  PairPlan plan = Plan(11, 0);
  plan.prompts_per_step = 2;
  plan.groups_in_flight = 1;
  plan.servers = 2;
  plan.losses = {{.server = 0, .at_seconds = 0.75}};
  const PairResult result = *SimulatePair(plan);
  EXPECT_NEAR(result.steps[0].rollout, 2, 1e-9);  // its own second, then the lost one's
  EXPECT_NEAR(result.server_busy_seconds[0], 0.75, 1e-9);
  EXPECT_NEAR(result.steps[1].rollout, 2, 1e-9);
}

TEST(PairModel, WithoutAnyServerTheRunEnds) {
  PairPlan plan = Plan(11, 0);
  plan.losses = {{.server = 0, .at_seconds = 0.5}};
  EXPECT_THAT(SimulatePair(plan),
              FailsWith(absl::StatusCode::kUnavailable, "every server is lost"));
}

TEST(PairModel, ProcessesOfOneMachineTakeTurnsAtItsCores) {
  PairPlan plan = Plan(11, 1);
  plan.shared_machine = true;
  const PairResult result = *SimulatePair(plan);
  // Groups 0 and 1 side by side on one server, then 2.5 s of training and push that share the cores
  // with 1 s of sampling: 3.5 s, as long as one after the other.
  EXPECT_NEAR(result.steps[0].rollout, 1, 1e-9);
  EXPECT_NEAR(result.steps[2].step(), 3.5, 1e-9);
  EXPECT_NEAR(result.steps.back().step(), 3.5, 1e-9);
}

TEST(PairModel, WeightsArePausedForOnceAPush) {
  PairPlan plan = Plan(41, 1);
  plan.groups_in_flight = 1;
  plan.pause_seconds = 0.3;
  EXPECT_NEAR(MeanOf(*SimulatePair(plan), 2).period(), 4.3, 1e-9);
}

TEST(PairModel, WhatIsRecordedAfterAPushDelaysTheNextRequest) {
  PairPlan plan = Plan(11, 0);
  plan.trainer = [](int64_t, const Sampled&) {
    return TrainerSeconds{.compute = 2, .record = 0.25};
  };
  const PairResult result = *SimulatePair(plan);
  EXPECT_NEAR(result.steps[3].period(), 3.25, 1e-9);
  EXPECT_NEAR(result.steps[3].step(), 3, 1e-9);  // time/step ends before
}

TEST(PairModel, TheTrainerIsToldWhatWasSampled) {
  PairPlan plan = Plan(11, 0);
  plan.steps = 1;
  plan.prompts_per_step = 2;
  plan.work = [](int64_t group) {
    return GroupWork{.prompt_tokens = 100, .lengths = {10 + group, 20}};
  };
  Sampled seen;
  plan.trainer = [&seen](int64_t, const Sampled& sampled) {
    seen = sampled;
    return TrainerSeconds{};
  };
  ASSERT_TRUE(SimulatePair(plan).ok());
  EXPECT_EQ(seen.tokens, 61);
  EXPECT_EQ(seen.packed_tokens, 261);
  EXPECT_EQ(seen.longest, 20);
}

TEST(PairModel, SettingsWithoutASenseAreRefused) {
  PairPlan plan = Plan(11, 0);
  plan.servers = 0;
  EXPECT_THAT(SimulatePair(plan), FailsWith(absl::StatusCode::kInvalidArgument, "servers 0"));
  plan = Plan(11, -1);
  EXPECT_THAT(SimulatePair(plan), FailsWith(absl::StatusCode::kInvalidArgument, "staleness -1"));
  plan = Plan(11, 0);
  plan.losses = {{.server = 1}};
  EXPECT_THAT(SimulatePair(plan), FailsWith(absl::StatusCode::kInvalidArgument, "no server 1"));
}

}  // namespace
}  // namespace tandem::simulate
