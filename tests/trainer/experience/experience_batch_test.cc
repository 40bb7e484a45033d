#include "trainer/experience/experience_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/status_matchers.h"
#include "tests/trainer/scored_groups.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::CutIntoTurns;
using ::tandem::testing::FailsWith;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::IsOk;
using ::tandem::testing::ScoredGroup;
using ::testing::ElementsAre;
using ::testing::IsNan;

constexpr int32_t kEnd = 2;

ScoredGroup OneGroup() {
  ScoredGroup group = GroupWithPrompt(7, {10, 11, 12});
  AddCompletion(group, {20, 21, kEnd}, 0.5f, -0.25f);
  AddCompletion(group, {22, kEnd}, -1.5f, -2.0f);
  return group;
}

absl::StatusOr<ExperienceBatch> Pack(const std::vector<ScoredGroup>& groups,
                                     int64_t microbatch_tokens = 1000,
                                     int64_t num_minibatches = 1) {
  return PackBatch(groups, {.microbatch_tokens = microbatch_tokens,
                            .num_minibatches = num_minibatches,
                            .vocab_size = 32});
}

TEST(PackBatchTest, Bug10OnlyCompletionsAreTrained) {
  const auto batch = Pack({OneGroup()});
  ASSERT_THAT(batch, IsOk());
  const Microbatch& micro = batch->microbatches[0];
  EXPECT_THAT(micro.loss_mask, ElementsAre(0, 0, 0, 1, 1, 1, 1, 1));
  EXPECT_THAT(micro.completion, ElementsAre(-1, -1, -1, 0, 0, 0, 1, 1));
  EXPECT_THAT(micro.behaviour_logprobs, ElementsAre(0, 0, 0, -0.25f, -0.25f, -0.25f, -2.0f, -2.0f));
  EXPECT_THAT(micro.advantages, ElementsAre(0, 0, 0, 0.5f, 0.5f, 0.5f, -1.5f, -1.5f));
  EXPECT_EQ(batch->num_trained_tokens, 5);
}

TEST(PackBatchTest, Bug11TheEndTokenIsTrained) {
  const auto batch = Pack({OneGroup()});
  const Microbatch& micro = batch->microbatches[0];
  EXPECT_EQ(micro.row.token_ids[5], kEnd);
  EXPECT_EQ(micro.loss_mask[5], 1);
  EXPECT_TRUE(micro.row.is_target[5]);
}

TEST(PackBatchTest, Bug12AnEndTokenInTheMiddleEndsNothing) {
  ScoredGroup group = GroupWithPrompt(1, {10, kEnd});
  AddCompletion(group, {20, kEnd, 21, kEnd}, 1);
  EXPECT_THAT(Pack({group})->microbatches[0].loss_mask, ElementsAre(0, 0, 1, 1, 1, 1));
}

TEST(PackBatchTest, Bug13ATruncatedCompletionGetsNoEndTokenOfItsOwn) {
  ScoredGroup group = GroupWithPrompt(1, {10});
  auto* scored = AddCompletion(group, {20, 21}, 1);
  scored->mutable_completion()->set_finish_reason(rollout::v1::FINISH_REASON_LENGTH);
  const auto batch = Pack({group});
  EXPECT_THAT(batch->microbatches[0].row.token_ids, ElementsAre(10, 20, 21));
  EXPECT_EQ(batch->num_trained_tokens, 2);
}

TEST(PackBatchTest, WhatAServerDoesNotSayOfItsDistributionIsUnknownAndNotZero) {
  ScoredGroup group = OneGroup();
  group.mutable_completions(0)->mutable_completion()->clear_entropies();
  group.mutable_completions(0)->mutable_completion()->clear_logprob_second_moments();
  const auto batch = Pack({group});
  ASSERT_THAT(batch, IsOk());
  const Microbatch& micro = batch->microbatches[0];
  EXPECT_THAT(micro.entropies, ElementsAre(0, 0, 0, IsNan(), IsNan(), IsNan(), 1, 1));
  EXPECT_THAT(micro.logprob_second_moments,
              ElementsAre(0, 0, 0, IsNan(), IsNan(), IsNan(), 1.5f, 1.5f));
}

TEST(PackBatchTest, WhatWasGivenBetweenTwoTurnsIsContextAndNotTrained) {
  ScoredGroup group = GroupWithPrompt(7, {10});
  auto* const scored =
      CutIntoTurns(AddCompletion(group, {20, kEnd, 5, 6, 21, kEnd}, 0.5f), {2, 2, 2});
  scored->set_reward(3);
  const auto batch = Pack({group});
  ASSERT_THAT(batch, IsOk());
  const Microbatch& micro = batch->microbatches[0];
  EXPECT_THAT(micro.row.token_ids, ElementsAre(10, 20, kEnd, 5, 6, 21, kEnd));
  EXPECT_THAT(micro.row.positions, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_THAT(micro.row.source, ElementsAre(-1, 0, 1, 2, 3, 4, 5));
  EXPECT_THAT(micro.row.is_target, ElementsAre(false, true, true, false, false, true, true));
  EXPECT_THAT(micro.loss_mask, ElementsAre(0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(micro.turns, ElementsAre(0, 1, 1, 0, 0, 2, 2));
  EXPECT_THAT(micro.completion, ElementsAre(-1, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(micro.behaviour_logprobs, ElementsAre(0, -1, -1, 0, 0, -1, -1));
  EXPECT_THAT(micro.advantages, ElementsAre(0, 0.5f, 0.5f, 0, 0, 0.5f, 0.5f));
  EXPECT_THAT(micro.entropies, ElementsAre(0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(micro.rewards, ElementsAre(0, 0, 0, 0, 0, 0, 3));
  EXPECT_EQ(batch->num_trained_tokens, 4);
  EXPECT_EQ(micro.row.segments.size(), 2u) << "one of the prompt, one of the whole completion";
}

TEST(PackBatchTest, ARewardOnAGivenTokenIsRefused) {
  ScoredGroup group = GroupWithPrompt(7, {10});
  auto* const scored = CutIntoTurns(AddCompletion(group, {20, 5, 21}, 0.5f), {1, 1, 1});
  for (const double reward : {0.0, 0.5, 0.0}) scored->add_token_rewards(reward);
  EXPECT_THAT(Pack({group}), FailsWith(absl::StatusCode::kInvalidArgument,
                                       "token 1 was given to the model and has reward 0.5"));
}

std::vector<int32_t> IdsOf(const SupportView& support) {
  std::vector<int32_t> ids;
  support.AppendTo(&ids);
  return ids;
}

TEST(PackBatchTest, ASupportIsTheSameAsIdsAndPacked) {
  ScoredGroup group = GroupWithPrompt(1, {10});
  auto* const completion = AddCompletion(group, {20, 21, 22}, 1)->mutable_completion();
  auto* const as_ids = completion->add_support();
  as_ids->add_ids(5);
  as_ids->add_ids(20);
  completion->add_support()->set_packed(PackedSupport(std::vector<int32_t>{21, 30}).bytes());
  completion->add_support();
  const std::vector<ScoredGroup> groups = {group};  // where the supports lie
  const auto batch = Pack(groups);
  ASSERT_THAT(batch, IsOk());
  const auto& support = batch->microbatches[0].row.support;
  ASSERT_EQ(support.size(), 4u);
  EXPECT_TRUE(support[0].empty()) << "of the prompt";
  EXPECT_THAT(IdsOf(support[1]), ElementsAre(5, 20));
  EXPECT_THAT(IdsOf(support[2]), ElementsAre(21, 30));
  EXPECT_TRUE(support[3].empty()) << "all ids";
}

TEST(PackBatchTest, APackedSupportIsCheckedAsIdsAre) {
  const auto refused = [](const std::string& packed) {
    ScoredGroup group = GroupWithPrompt(1, {10});
    auto* const completion = AddCompletion(group, {20}, 1)->mutable_completion();
    completion->add_support()->set_packed(packed);
    return Pack({group}).status();
  };
  EXPECT_THAT(refused(PackedSupport(std::vector<int32_t>{19, 21}).bytes()),
              FailsWith(absl::StatusCode::kInvalidArgument, "with 20 among them"));
  EXPECT_THAT(refused(PackedSupport(std::vector<int32_t>{20, 32}).bytes()),
              FailsWith(absl::StatusCode::kInvalidArgument, "ids it announces"));
  EXPECT_THAT(refused("\1"), FailsWith(absl::StatusCode::kInvalidArgument, "is cut off"));
}

TEST(PackBatchTest, LeavesOutMaskedCompletions) {
  ScoredGroup group = OneGroup();
  group.mutable_completions(0)->set_masked(true);
  const auto batch = Pack({group});
  ASSERT_THAT(batch, IsOk());
  EXPECT_EQ(batch->num_trained_tokens, 2);
  ASSERT_EQ(batch->completions.size(), 1u);
  EXPECT_EQ(batch->completions[0].completion, 1);
}

TEST(PackBatchTest, KeepsAGroupTogetherWhereItFitsAndElseRepeatsItsPrompt) {
  // 8 tokens a group: two rows of one group each in 10 tokens, and 3 + 3, 3 + 2 in 6.
  EXPECT_EQ(Pack({OneGroup(), OneGroup()}, 10)->microbatches.size(), 2u);
  EXPECT_EQ(Pack({OneGroup(), OneGroup()}, 16)->microbatches.size(), 1u);
  const auto split = Pack({OneGroup()}, 6);
  ASSERT_EQ(split->microbatches.size(), 2u);
  EXPECT_THAT(split->microbatches[1].row.token_ids, ElementsAre(10, 11, 12, 22, kEnd));
  EXPECT_THAT(split->microbatches[1].completion, ElementsAre(-1, -1, -1, 1, 1));
}

TEST(PackBatchTest, AWholeGroupHasARowOfItsOwnWhereItIsOverTheBudget) {
  const auto batch =
      PackBatch(std::vector<ScoredGroup>{OneGroup(), OneGroup()},
                {.microbatch_tokens = 6, .vocab_size = 32, .num_ranks = 2, .whole_groups = true});
  ASSERT_THAT(batch, IsOk());
  ASSERT_EQ(batch->microbatches.size(), 2);
  for (const Microbatch& micro : batch->microbatches) {
    EXPECT_EQ(micro.row.num_tokens(), 8) << "the prompt once, and both completions";
    EXPECT_EQ(micro.num_completions, 2);
  }
}

TEST(PackBatchTest, ACompletionOverTheBudgetHasARowOfItsOwn) {
  EXPECT_EQ(Pack({OneGroup()}, 1)->microbatches.size(), 2u);
}

TEST(PackBatchTest, EveryCompletionStandsExactlyOnceHoweverTheRowsAreCut) {
  std::vector<ScoredGroup> groups = {OneGroup(), OneGroup(), OneGroup()};
  for (const int64_t budget : {1, 6, 9, 14, 1000}) {
    const auto batch = Pack(groups, budget, 2);
    ASSERT_THAT(batch, IsOk());
    EXPECT_EQ(batch->completions.size(), 6u);
    EXPECT_EQ(batch->num_trained_tokens, 15);
    int64_t tokens = 0;
    for (const Microbatch& micro : batch->microbatches) tokens += micro.num_trained_tokens;
    EXPECT_EQ(tokens, 15);
  }
}

TEST(PackBatchTest, MinibatchesHoldWholeGroupsAndCoverAllRows) {
  const auto batch = Pack({OneGroup(), OneGroup(), OneGroup()}, 6, 2);
  ASSERT_EQ(batch->minibatches.size(), 2u);
  EXPECT_EQ(batch->minibatches[0].begin, 0);
  EXPECT_EQ(batch->minibatches[0].end, batch->minibatches[1].begin);
  EXPECT_EQ(batch->minibatches[1].end, static_cast<int64_t>(batch->microbatches.size()));
  EXPECT_EQ(Pack({OneGroup()}, 1000, 4)->minibatches.size(), 1u) << "at most one per group";
}

// Four groups of 8 tokens: two rows for two ranks, four for four, and a fifth rank has none, since
// no group is split for it.
TEST(PackBatchTest, RowsAreCutSoThatEveryRankHasOneWhereGroupsAllow) {
  const std::vector<ScoredGroup> groups(4, OneGroup());
  for (const auto& [num_ranks, rows] : {std::pair(1, 1u), {2, 2u}, {4, 4u}, {5, 4u}}) {
    const auto batch = PackBatch(groups, {.vocab_size = 32, .num_ranks = num_ranks});
    ASSERT_THAT(batch, IsOk());
    EXPECT_EQ(batch->microbatches.size(), rows) << num_ranks << " ranks";
  }
}

ExperienceBatch RowsOf(const std::vector<int64_t>& lengths) {
  ExperienceBatch batch;
  for (const int64_t length : lengths) {
    batch.microbatches.emplace_back().row.token_ids.resize(static_cast<size_t>(length));
  }
  return batch;
}

TEST(AssignRanksTest, TheLongestRowsGoFirstToWhoHasTheLeast) {
  ExperienceBatch batch = RowsOf({2, 7, 3, 5, 4});
  batch.minibatches = {{0, 5}};
  EXPECT_THAT(AssignRanks(batch, 1), ElementsAre(0, 0, 0, 0, 0));
  // 7 to rank 0, 5 to 1, 4 to 1 (9), 3 to 0 (10), 2 to 1 (11).
  EXPECT_THAT(AssignRanks(batch, 2), ElementsAre(1, 0, 0, 1, 1));
}

TEST(AssignRanksTest, EveryMinibatchIsBalancedForItself) {
  ExperienceBatch batch = RowsOf({9, 1, 1, 9});
  batch.minibatches = {{0, 2}, {2, 4}};
  EXPECT_THAT(AssignRanks(batch, 2), ElementsAre(0, 1, 1, 0));
}

TEST(AssignRanksTest, MoreRanksThanRowsLeaveTheLastOnesWithout) {
  ExperienceBatch batch = RowsOf({3, 2});
  batch.minibatches = {{0, 2}};
  EXPECT_THAT(AssignRanks(batch, 4), ElementsAre(0, 1));
}

TEST(PackBatchTest, Bug33RefusesIdsThatAreNotTheOnesThatWereSampled) {
  ScoredGroup group = OneGroup();
  group.mutable_completions(1)->mutable_completion()->set_token_ids(0, 23);
  EXPECT_THAT(Pack({group}), FailsWith(absl::StatusCode::kInvalidArgument,
                                       "group 7, completion 1: token ids have hash"));
}

TEST(PackBatchTest, RefusesArraysAndSpansThatDoNotAddUp) {
  ScoredGroup arrays = OneGroup();
  arrays.mutable_completions(0)->mutable_completion()->add_behaviour_logprobs(-1);
  EXPECT_THAT(Pack({arrays}),
              FailsWith(absl::StatusCode::kInvalidArgument, "3 tokens with 4 behaviour log-probs"));
  ScoredGroup spans = OneGroup();
  spans.mutable_completions(0)->mutable_completion()->mutable_version_spans(0)->set_num_tokens(2);
  EXPECT_THAT(Pack({spans}),
              FailsWith(absl::StatusCode::kInvalidArgument, "version spans cover 2 of 3 tokens"));
  ScoredGroup falling = OneGroup();
  auto* completion = falling.mutable_completions(0)->mutable_completion();
  completion->mutable_version_spans(0)->set_num_tokens(2);
  completion->mutable_version_spans(0)->set_weight_version(5);
  completion->add_version_spans()->set_num_tokens(1);
  completion->mutable_version_spans(1)->set_weight_version(4);
  EXPECT_THAT(Pack({falling}),
              FailsWith(absl::StatusCode::kInvalidArgument, "of version 4 after version 5"));
}

TEST(PackBatchTest, RefusesWhatCannotBeTrained) {
  EXPECT_THAT(Pack({GroupWithPrompt(1, {})}),
              FailsWith(absl::StatusCode::kInvalidArgument, "group 1: prompt: no tokens"));
  ScoredGroup outside = GroupWithPrompt(1, {99});
  EXPECT_THAT(Pack({outside}),
              FailsWith(absl::StatusCode::kInvalidArgument, "id 99 outside the vocabulary of 32"));
  ScoredGroup advantage = OneGroup();
  advantage.mutable_completions(0)->set_advantage(std::numeric_limits<float>::infinity());
  EXPECT_THAT(Pack({advantage}),
              FailsWith(absl::StatusCode::kInvalidArgument, "advantage inf is not finite"));
  ScoredGroup twice = OneGroup();
  twice.mutable_completions(1)->mutable_completion()->set_index(0);
  EXPECT_THAT(Pack({twice}), FailsWith(absl::StatusCode::kInvalidArgument, "twice in its group"));
  ScoredGroup masked = OneGroup();
  for (auto& c : *masked.mutable_completions()) c.set_masked(true);
  EXPECT_THAT(Pack({masked}), FailsWith(absl::StatusCode::kFailedPrecondition, "all are masked"));
}

}  // namespace
}  // namespace tandem::trainer
