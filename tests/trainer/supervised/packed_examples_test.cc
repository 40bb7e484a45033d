#include "trainer/supervised/packed_examples.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/supervised/toy_examples.h"
#include "trainer/supervised/objectives/preference_objective.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::FirstNumbers;
using ::tandem::testing::IsOk;

const std::vector<PreferencePair> kThreePairs = {
    {.prompt = {1, 2}, .chosen = {3, 4, 5}, .rejected = {6}},
    {.prompt = {7}, .chosen = {8}, .rejected = {9, 10}},
    {.prompt = {11, 12, 13}, .chosen = {14}, .rejected = {15}},
};

GroupTokens TokensOfPair(int64_t i) { return TokensOf(kThreePairs[static_cast<size_t>(i)]); }

TEST(PackExamples, APromptStandsOnceAndRowsHoldWholeExamples) {
  const auto packed = PackExamples(FirstNumbers(3), TokensOfPair, {.microbatch_tokens = 10});
  ASSERT_THAT(packed, IsOk());
  ASSERT_EQ(packed->batch.microbatches.size(), 2u);  // 6 + 4 tokens, then 5
  EXPECT_EQ(packed->batch.microbatches[0].row.token_ids,
            (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(packed->batch.microbatches[1].row.num_tokens(), 5);
  ASSERT_EQ(packed->of_row[0].size(), 2u);
  const PackedExample& second = packed->of_row[0][1];
  EXPECT_EQ(second.example, 1);
  EXPECT_EQ(second.prompt, (TokenRange{6, 7}));
  EXPECT_EQ(second.completions, (std::vector<TokenRange>{{7, 8}, {8, 10}}));
  EXPECT_EQ(packed->of_row[1][0].example, 2);
}

TEST(PackExamples, ExamplesOfOnePromptShareItWithinARow) {
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6, 1, 2, 7, 8, 9, 1, 2, 10};
  const auto part = [&](size_t begin, size_t end) {
    return std::span(ids).subspan(begin, end - begin);
  };
  const std::vector<GroupTokens> tokens = {
      {.prompt = part(0, 2), .completions = {part(2, 3)}},
      {.prompt = part(3, 4), .completions = {part(4, 6)}},
      {.prompt = part(6, 8), .completions = {part(8, 10), part(10, 11)}},
      {.prompt = part(11, 13), .completions = {part(13, 14)}}};
  const auto tokens_of = [&](int64_t i) { return tokens[static_cast<size_t>(i)]; };
  // 3, 3 and 3 tokens; the fourth example does not fit, and begins a row with its prompt.
  const auto packed = PackExamples(FirstNumbers(4), tokens_of, {.microbatch_tokens = 9});
  ASSERT_THAT(packed, IsOk());
  ASSERT_EQ(packed->batch.microbatches.size(), 2u);
  EXPECT_EQ(packed->batch.microbatches[0].row.token_ids,
            (std::vector<int32_t>{1, 2, 3, 7, 8, 9, 4, 5, 6}));
  EXPECT_EQ(packed->batch.microbatches[0].row.source,
            (std::vector<int64_t>{-1, 0, 1, 1, 3, 1, -1, 6, 7}));
  const std::vector<PackedExample>& places = packed->of_row[0];
  ASSERT_EQ(places.size(), 3u);  // in the order of the examples
  EXPECT_EQ(places[0].completions, (std::vector<TokenRange>{{2, 3}}));
  EXPECT_EQ(places[1].prompt, (TokenRange{6, 7}));
  EXPECT_EQ(places[1].completions, (std::vector<TokenRange>{{7, 9}}));
  EXPECT_EQ(places[2].example, 2);
  EXPECT_EQ(places[2].prompt, (TokenRange{0, 2}));
  EXPECT_EQ(places[2].completions, (std::vector<TokenRange>{{3, 5}, {5, 6}}));
  EXPECT_EQ(packed->batch.microbatches[1].row.token_ids, (std::vector<int32_t>{1, 2, 10}));
  EXPECT_EQ(packed->of_row[1][0].completions, (std::vector<TokenRange>{{2, 3}}));
}

TEST(PackExamples, RowsAreSmallerWhereThereAreMoreRanks) {
  // 15 tokens over 3 ranks are 5 a row, which no two examples fit in.
  const auto packed =
      PackExamples(FirstNumbers(3), TokensOfPair, {.microbatch_tokens = 100, .num_ranks = 3});
  ASSERT_THAT(packed, IsOk());
  EXPECT_EQ(packed->batch.microbatches.size(), 3u);
  EXPECT_EQ(packed->batch.minibatches.size(), 1u);
  EXPECT_EQ(packed->batch.minibatches[0].end, 3);
}

TEST(PackExamples, PromptsAreTargetsButForTheirFirstTokenWhereThatIsAskedFor) {
  const auto packed = PackExamples(FirstNumbers(1), TokensOfPair, {.prompt_is_target = true});
  ASSERT_THAT(packed, IsOk());
  EXPECT_EQ(packed->batch.microbatches[0].row.is_target,
            (std::vector<bool>{false, true, true, true, true, true}));
}

TEST(PackExamples, AnExampleWithoutTokensIsRefused) {
  const auto empty = [](int64_t) { return GroupTokens{}; };
  EXPECT_THAT(PackExamples(FirstNumbers(1), empty, {}),
              FailsWith(absl::StatusCode::kInvalidArgument, "example 0: the prompt has no tokens"));
}

}  // namespace
}  // namespace tandem::trainer
