#include "trainer/experience/group_check.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/weights/digest.h"
#include "tests/support/status_matchers.h"

namespace tandem::trainer {
namespace {

using rollout::v1::Completion;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

rollout::v1::GenerateGroupRequest Request() {
  rollout::v1::GenerateGroupRequest request;
  request.set_group_id(5);
  request.set_num_completions(2);
  request.set_min_weight_version(3);
  request.mutable_sampling()->set_max_new_tokens(4);
  return request;
}

// Two tokens of version 3, one of version 4.
Completion Good(int index = 1) {
  Completion completion;
  completion.set_index(index);
  for (const int32_t id : {7, 8, 9}) {
    completion.add_token_ids(id);
    completion.add_behaviour_logprobs(-1);
  }
  for (const auto& [version, tokens] : {std::pair(3, 2), std::pair(4, 1)}) {
    auto* const span = completion.add_version_spans();
    span->set_weight_version(version);
    span->set_num_tokens(tokens);
  }
  completion.set_finish_reason(rollout::v1::FINISH_REASON_STOP);
  completion.set_token_hash(HashTokenIds(std::vector<int32_t>{7, 8, 9}));
  return completion;
}

TEST(CheckCompletion, AcceptsParallelArraysWithRisingVersions) {
  EXPECT_THAT(CheckCompletion(Request(), Good()), IsOk());
}

TEST(CheckCompletion, NamesArraysThatAreNotParallel) {
  Completion completion = Good();
  completion.add_behaviour_logprobs(-1);
  EXPECT_THAT(
      CheckCompletion(Request(), completion),
      FailsWith(kDataLoss, "group 5 completion 1 has 3 token_ids and 4 behaviour_logprobs"));
  completion = Good();
  completion.add_entropies(1);
  EXPECT_THAT(CheckCompletion(Request(), completion), FailsWith(kDataLoss, "1 entropies"));
}

TEST(CheckCompletion, WantsSpansThatAddUpAndNeverFall) {
  Completion completion = Good();
  completion.mutable_version_spans(1)->set_num_tokens(2);
  EXPECT_THAT(CheckCompletion(Request(), completion),
              FailsWith(kDataLoss, "3 tokens and version spans over 4"));
  completion = Good();
  completion.mutable_version_spans(0)->set_weight_version(5);
  EXPECT_THAT(CheckCompletion(Request(), completion),
              FailsWith(kDataLoss, "version 4 after version 5"));
  completion = Good();
  completion.mutable_version_spans(0)->set_weight_version(2);
  EXPECT_THAT(CheckCompletion(Request(), completion),
              FailsWith(kDataLoss, "version 2 after version 3 was asked"));
  completion = Good();
  completion.mutable_version_spans(0)->set_num_tokens(0);
  EXPECT_THAT(CheckCompletion(Request(), completion), FailsWith(kDataLoss, "empty span"));
}

TEST(CheckCompletion, WantsTheTurnsThatWereAskedFor) {
  auto request = Request();
  request.mutable_turns()->set_max_turns(2);
  request.mutable_turns()->set_max_completion_tokens(8);
  Completion completion = Good();
  for (const int tokens : {1, 1, 1}) {
    auto* const segment = completion.add_segments();
    segment->set_given(completion.segments_size() == 2);
    segment->set_num_tokens(tokens);
  }
  completion.mutable_version_spans()->RemoveLast();
  EXPECT_THAT(CheckCompletion(request, completion), IsOk());
  EXPECT_THAT(CheckCompletion(Request(), completion),
              FailsWith(kDataLoss, "has 2 turns, asked for were at most 1"));
  request.mutable_sampling()->set_max_new_tokens(0);
  EXPECT_THAT(CheckCompletion(request, completion), FailsWith(kDataLoss, "a turn of 1 tokens"));
  request = Request();
  request.mutable_turns()->set_max_turns(2);
  request.mutable_turns()->set_max_completion_tokens(2);
  EXPECT_THAT(CheckCompletion(request, completion), FailsWith(kDataLoss, "3 tokens, want 1 to 2"));
  request.mutable_turns()->set_max_completion_tokens(8);
  completion.mutable_segments(1)->set_given(false);
  EXPECT_THAT(CheckCompletion(request, completion),
              FailsWith(kDataLoss, "drawn and given by turns"));
}

TEST(Bug33RetokenisedText, IdsThatAreNotThoseThatWereSampledAreRefused) {
  Completion completion = Good();
  completion.set_token_ids(2, 10);
  EXPECT_THAT(CheckCompletion(Request(), completion), FailsWith(kDataLoss, "changed or made anew"));
}

TEST(CheckCompletion, WantsALengthAnIndexAndAReason) {
  Completion completion = Good();
  completion.set_index(2);
  EXPECT_THAT(CheckCompletion(Request(), completion),
              FailsWith(kDataLoss, "want an index from 0 to 1"));
  completion = Good();
  completion.clear_token_ids();
  EXPECT_THAT(CheckCompletion(Request(), completion),
              FailsWith(kDataLoss, "has 0 tokens, want 1 to 4"));
  completion = Good();
  completion.clear_finish_reason();
  EXPECT_THAT(CheckCompletion(Request(), completion), FailsWith(kDataLoss, "no finish reason"));
}

TEST(CheckCompletion, TakesOneGreedyCompletionMoreWhereItWasAskedFor) {
  rollout::v1::GenerateGroupRequest request = Request();
  Completion baseline = Good();
  baseline.set_index(2);
  EXPECT_THAT(CheckCompletion(request, baseline),
              FailsWith(kDataLoss, "want an index from 0 to 1"));
  request.set_greedy_baseline(true);
  EXPECT_THAT(CheckCompletion(request, baseline),
              FailsWith(kDataLoss, "is the greedy baseline, and was not sampled greedily"));
  baseline.set_greedy(true);
  EXPECT_THAT(CheckCompletion(request, baseline), IsOk());
  std::vector<Completion> group = {baseline, Good(1), Good(0)};
  ASSERT_THAT(CheckGroup(request, &group), IsOk());
  EXPECT_TRUE(group.back().greedy());
  group = {Good(1), Good(0)};
  EXPECT_THAT(CheckGroup(request, &group),
              FailsWith(kDataLoss, "is done with 2 of 3 completions; a server that knows no"));
}

TEST(CheckGroup, SortsAndWantsEveryIndexOnce) {
  std::vector<Completion> group = {Good(1), Good(0)};
  ASSERT_THAT(CheckGroup(Request(), &group), IsOk());
  EXPECT_EQ(group[0].index(), 0);
  group = {Good(1), Good(1)};
  EXPECT_THAT(CheckGroup(Request(), &group), FailsWith(kDataLoss, "completion 0 not once"));
  group = {Good(1)};
  EXPECT_THAT(CheckGroup(Request(), &group), FailsWith(kDataLoss, "1 of 2 completions"));
}

TEST(CheckNoneNewer, RefusesTokensOfAVersionThatWasNeverPublished) {
  const std::vector<Completion> group = {Good(0), Good(1)};
  EXPECT_THAT(CheckNoneNewer(group, 4), IsOk());
  EXPECT_THAT(CheckNoneNewer(group, 3),
              FailsWith(kDataLoss, "weight version 4, and 3 is the last that was published"));
}

}  // namespace
}  // namespace tandem::trainer
