#include "trainer/experience/drawn_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/scored_groups.h"

namespace tandem::trainer {
namespace {

using rollout::v1::Completion;
using ::tandem::testing::AddCompletion;
using ::tandem::testing::CutIntoTurns;
using ::tandem::testing::FailsWith;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::IsOk;
using ::testing::ElementsAre;

// Two drawn tokens of version 3, three given ones, one drawn of version 4.
Completion TwoTurns() {
  auto group = GroupWithPrompt(1, {10});
  Completion completion =
      CutIntoTurns(AddCompletion(group, {20, 21, 22, 23, 24, 25}, 1), {2, 3, 1})->completion();
  completion.mutable_version_spans(0)->set_weight_version(3);
  completion.mutable_version_spans(0)->set_num_tokens(2);
  auto* const later = completion.add_version_spans();
  later->set_weight_version(4);
  later->set_num_tokens(1);
  return completion;
}

TEST(DrawnTokens, AreThoseOfTheTurns) {
  const Completion completion = TwoTurns();
  EXPECT_TRUE(HasTurns(completion));
  EXPECT_EQ(NumTurns(completion), 2);
  EXPECT_EQ(NumDrawn(completion), 3);
  EXPECT_THAT(TurnsOf(completion), ElementsAre(1, 1, 0, 0, 0, 2));
  EXPECT_THAT(VersionsOf(completion), ElementsAre(3, 3, 0, 0, 0, 4));
  EXPECT_THAT(CheckSegments(completion, "it"), IsOk());
}

TEST(DrawnTokens, AreAllOfACompletionOfOneTurn) {
  auto group = GroupWithPrompt(1, {10});
  const Completion completion = AddCompletion(group, {20, 21}, 1)->completion();
  EXPECT_FALSE(HasTurns(completion));
  EXPECT_EQ(NumTurns(completion), 1);
  EXPECT_EQ(NumDrawn(completion), 2);
  EXPECT_THAT(TurnsOf(completion), ElementsAre(1, 1));
  EXPECT_THAT(VersionsOf(completion), ElementsAre(0, 0));
  EXPECT_THAT(CheckSegments(completion, "it"), IsOk());
}

TEST(DrawnTokens, WhatEndsWithAToolsResultBelongsToTheTurnBefore) {
  const std::vector<int32_t> turns = {1, 1, 0, 0, 0, 2};
  EXPECT_EQ(EndDrawn(turns, 2), 2);
  EXPECT_EQ(EndDrawn(turns, 3), 2);
  EXPECT_EQ(EndDrawn(turns, 5), 2);
  EXPECT_EQ(EndDrawn(turns, 6), 6);
}

TEST(DrawnTokens, SegmentsThatDoNotFitAreNamed) {
  const auto refused = [](const Completion& completion, const std::string& why) {
    EXPECT_THAT(CheckSegments(completion, "it"),
                FailsWith(absl::StatusCode::kInvalidArgument, "it: " + why));
  };
  Completion completion = TwoTurns();
  completion.mutable_segments(1)->set_num_tokens(2);
  refused(completion, "segments cover 5 of 6 tokens");
  completion.mutable_segments(1)->set_num_tokens(0);
  refused(completion, "an empty segment");
  completion = TwoTurns();
  completion.mutable_segments(1)->set_given(false);
  refused(completion, "segments must be drawn and given by turns, drawn ones first");
  completion = TwoTurns();
  completion.mutable_segments()->RemoveLast();
  refused(completion, "the last segment was given");
  completion = TwoTurns();
  completion.mutable_version_spans(1)->set_num_tokens(4);
  refused(completion, "version spans cover 6 of 3 drawn tokens");
}

}  // namespace
}  // namespace tandem::trainer
