#include "cli/pipeline/stage_record.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::FailsWith;

StageRecord Record(StageState state) {
  return {.name = "warm",
          .state = state,
          .identity = {.kind = "sft", .options = {{"lr", "1e-5"}}, .inputs = {{"base", "aa"}}},
          .directory = "runs/p/stages/1_warm",
          .started = 10,
          .ended = 20,
          .exit_code = 3,
          .outputs = {{"model", "runs/p/stages/1_warm/model"}},
          .output_digests = {{"runs/p/stages/1_warm/model", "bb"}}};
}

TEST(StageRecordTest, ARecordIsReadAsItWasWritten) {
  const StageRecord was = Record(StageState::kDone);
  const auto read = ParseStageRecords(ToJson("p", "p.yaml", {was}), "pipeline.json");
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 1u);
  const StageRecord& now = read->front();
  EXPECT_EQ(now.name, "warm");
  EXPECT_EQ(now.state, StageState::kDone);
  EXPECT_EQ(now.identity.Digest(), was.identity.Digest());
  EXPECT_EQ(now.directory, was.directory);
  EXPECT_EQ(now.started, 10);
  EXPECT_EQ(now.ended, 20);
  EXPECT_EQ(now.exit_code, 3);
  EXPECT_EQ(now.outputs, was.outputs);
  EXPECT_EQ(now.output_digests, was.output_digests);
  EXPECT_THAT(ParseStageRecords("{\"stages\": 3}", "pipeline.json"),
              FailsWith(absl::StatusCode::kDataLoss, "pipeline.json is no record of a pipeline"));
}

TEST(StageRecordTest, ADigestTellsOptionsFromInputsAndNamesFromValues) {
  const StageIdentity one = {.kind = "sft", .options = {{"a", "b"}}, .inputs = {}};
  const StageIdentity two = {.kind = "sft", .options = {}, .inputs = {{"a", "b"}}};
  const StageIdentity three = {.kind = "sft", .options = {{"a:", "b"}}, .inputs = {}};
  EXPECT_NE(one.Digest(), two.Digest());
  EXPECT_NE(one.Digest(), three.Digest());
  EXPECT_EQ(one.Digest(), (StageIdentity{"sft", {{"a", "b"}}, {}}).Digest());
}

TEST(StageRecordTest, WhatLiesInADirectorySaysHowAStageGoesOn) {
  const auto action = [](StageState state, StageEvidence evidence) {
    const StageRecord record = Record(state);
    return *NextAction(record, record.identity, evidence);
  };
  using S = StageState;
  using A = StageAction;
  EXPECT_EQ(action(S::kPending, {}), A::kStart);
  EXPECT_EQ(action(S::kDone, {}), A::kSkip);
  EXPECT_EQ(action(S::kRunning, {}), A::kStart);
  EXPECT_EQ(action(S::kRunning, {.can_resume = true}), A::kResume);
  // Killed after the command had ended: its outputs are taken, and nothing runs again.
  EXPECT_EQ(action(S::kRunning, {.outputs_are_whole = true, .can_resume = true}), A::kFinish);
  EXPECT_EQ(action(S::kFailed, {.can_resume = true}), A::kResume);
}

TEST(StageRecordTest, AChangeOfFinishedWorkIsRefusedAndNamed) {
  const StageRecord record = Record(StageState::kDone);
  StageIdentity now = record.identity;
  now.options["lr"] = "1e-4";
  EXPECT_THAT(
      NextAction(record, now, {}),
      FailsWith(absl::StatusCode::kInvalidArgument,
                "stage warm is done, and its option lr was `1e-5` and is `1e-4` now: put it "
                "back, or do this stage and all later ones again with --from warm"));
  now = record.identity;
  now.options["epochs"] = "2";
  EXPECT_THAT(NextAction(record, now, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, "epochs was not set and is `2` now"));
  now = record.identity;
  now.inputs["base"] = "cc";
  EXPECT_THAT(NextAction(record, now, {}), FailsWith(absl::StatusCode::kInvalidArgument,
                                                     "its input base has other contents now"));
}

TEST(StageRecordTest, AStageThatHoldsNoWorkMayChange) {
  const StageRecord failed = Record(StageState::kFailed);
  StageIdentity now = failed.identity;
  now.options["lr"] = "1e-4";
  EXPECT_EQ(*NextAction(failed, now, {}), StageAction::kStart);
  EXPECT_THAT(NextAction(failed, now, {.can_resume = true}),
              FailsWith(absl::StatusCode::kInvalidArgument, "stage warm was begun"));
}

TEST(StageRecordTest, StagesThatRanKeepTheirPlaces) {
  std::vector<StageRecord> records = {Record(StageState::kDone), Record(StageState::kPending)};
  records[1].name = "rl";
  EXPECT_TRUE(CheckSameOrder(records, {"warm", "other", "rl"}).ok());
  EXPECT_THAT(CheckSameOrder(records, {"other", "warm"}),
              FailsWith(absl::StatusCode::kInvalidArgument,
                        "stage 1 was warm, which is done, and is other now"));
}

}  // namespace
}  // namespace tandem::cli
