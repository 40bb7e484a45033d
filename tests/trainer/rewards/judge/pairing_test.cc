#include "trainer/rewards/judge/pairing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/trainer/rewards/held_completions.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

RewardAnswer Says(double verdict) { return ExternalAnswer{.value = verdict}; }

std::vector<int> OpponentsOf(size_t n, const std::vector<CompletionPair>& pairs) {
  std::vector<int> counts(n, 0);
  for (const auto& [first, second] : pairs) {
    EXPECT_LT(first, second);
    ++counts[first];
    ++counts[second];
  }
  EXPECT_EQ(std::set<CompletionPair>(pairs.begin(), pairs.end()).size(), pairs.size());
  return counts;
}

TEST(MakePairs, AreAllPairsWithoutANumber) {
  EXPECT_THAT(MakePairs(3, 0, 1),
              ElementsAre(CompletionPair{0, 1}, CompletionPair{0, 2}, CompletionPair{1, 2}));
  EXPECT_EQ(MakePairs(4, 3, 1).size(), 6u);
  EXPECT_EQ(MakePairs(4, 99, 1).size(), 6u);
  EXPECT_THAT(MakePairs(1, 0, 1), IsEmpty());
  EXPECT_THAT(MakePairs(0, 0, 1), IsEmpty());
}

TEST(MakePairs, GiveEachCompletionTheSameNumberOfOpponents) {
  EXPECT_THAT(OpponentsOf(8, MakePairs(8, 2, 1)), Each(2));
  EXPECT_THAT(OpponentsOf(8, MakePairs(8, 3, 1)), Each(3));
  EXPECT_THAT(OpponentsOf(8, MakePairs(8, 1, 1)), Each(1));
  EXPECT_THAT(OpponentsOf(7, MakePairs(7, 4, 1)), Each(4));
  EXPECT_THAT(OpponentsOf(7, MakePairs(7, 3, 1)), Each(4)) << "odd times odd is no number of pairs";
}

TEST(MakePairs, AreDrawnAnewForAnotherSeedAndTheSameForTheSame) {
  EXPECT_EQ(MakePairs(16, 2, 5), MakePairs(16, 2, 5));
  EXPECT_NE(MakePairs(16, 2, 5), MakePairs(16, 2, 6));
}

TEST(PairQuestions, AskEachPairInBothOrders) {
  const auto questions = PairQuestions(HeldCompletions({"x", "y", "z"}), {{0, 2}});
  ASSERT_EQ(questions.size(), 2u);
  EXPECT_EQ(questions[0].index, 0u);
  EXPECT_EQ(questions[0].other, 2u);
  EXPECT_EQ(questions[1].index, 2u);
  EXPECT_EQ(questions[1].other, 0u);
}

TEST(ScorePairs, AWinInBothOrdersIsOneAndInOneOrderAHalf) {
  // 0 beats 1 in both orders; 0 and 2 win where they are shown first; 2 ties with 1 once.
  const auto rewards = ScorePairs(3, {{0, 1}, {0, 2}, {1, 2}},
                                  {Says(1), Says(0), Says(1), Says(1), Says(0), Says(0.5)});
  EXPECT_DOUBLE_EQ(rewards.answers[0]->value, (1 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(rewards.answers[1]->value, (0 + 0.25) / 2);
  EXPECT_DOUBLE_EQ(rewards.answers[2]->value, (0.5 + 0.75) / 2);
  EXPECT_EQ(rewards.num_judged, 3);
  EXPECT_EQ(rewards.num_disagreements, 2);
}

TEST(ScorePairs, AJudgeThatAlwaysPrefersTheFirstMovesNoReward) {
  const auto rewards = ScorePairs(2, {{0, 1}}, {Says(1), Says(1)});
  EXPECT_DOUBLE_EQ(rewards.answers[0]->value, 0.5);
  EXPECT_DOUBLE_EQ(rewards.answers[1]->value, 0.5);
  EXPECT_EQ(rewards.num_disagreements, 1);
}

TEST(ScorePairs, APairWithoutAVerdictCountsForNeither) {
  const RewardAnswer failed = absl::UnavailableError("gone");
  const auto rewards =
      ScorePairs(3, {{0, 1}, {0, 2}, {1, 2}}, {Says(1), Says(0), failed, Says(1), Says(0), failed});
  EXPECT_DOUBLE_EQ(rewards.answers[0]->value, 1);
  EXPECT_DOUBLE_EQ(rewards.answers[1]->value, 0);
  EXPECT_THAT(rewards.answers[2], FailsWith(absl::StatusCode::kUnavailable, "gone"));
  EXPECT_EQ(rewards.num_judged, 1);
}

TEST(ScorePairs, TheOnlyCompletionOfAGroupIsNeitherBetterNorWorse) {
  EXPECT_DOUBLE_EQ(ScorePairs(1, {}, {}).answers[0]->value, 0.5);
}

}  // namespace
}  // namespace tandem::trainer
