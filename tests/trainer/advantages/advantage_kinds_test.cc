// The baselines beside the mean of the group, and rewards of steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "proto/experience.pb.h"
#include "tests/support/status_matchers.h"
#include "trainer/advantages/group_advantages.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {
namespace {

using experience::v1::ScoredGroup;
using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::FloatNear;

AdvantageOptions OfKind(AdvantageKind kind) { return {.kind = kind}; }

TEST(OptimalBaseline, IsTheMeanRewardWeightedByLength) {
  // (1 x 10 + 0 x 30) / 40 = 0.25
  EXPECT_THAT(ComputeAdvantages({.rewards = {1, 0}, .lengths = {10, 30}},
                                OfKind(AdvantageKind::kOptimalBaseline)),
              ElementsAre(FloatEq(0.75f), FloatEq(-0.25f)));
  EXPECT_THAT(ComputeAdvantages({.rewards = {0.1, 0.1}, .lengths = {3, 7}},
                                OfKind(AdvantageKind::kOptimalBaseline)),
              Each(FloatEq(0)));
}

TEST(GreedyBaseline, IsTheRewardOfTheGreedyCompletionAlsoWhereAllRewardsAreEqual) {
  EXPECT_THAT(ComputeAdvantages({.rewards = {1, 1}, .baseline = 0.25},
                                OfKind(AdvantageKind::kGreedyBaseline)),
              Each(FloatEq(0.75f)));
}

TEST(NoBaseline, LeavesTheReward) {
  EXPECT_THAT(ComputeAdvantages({.rewards = {2, 2, -1}}, OfKind(AdvantageKind::kNone)),
              ElementsAre(2, 2, -1));
}

// All subsets of k members, each worth 1 if it has a correct member. A member's advantage is the
// mean over the subsets with it, less that over all, over the deviation of all.
TEST(PassAtK, IsWhatEnumeratingAllSubsetsGives) {
  for (const int num_correct : {0, 1, 2, 4, 5}) {
    for (int64_t k = 1; k <= 5; ++k) {
      std::vector<bool> correct(5);
      std::fill_n(correct.begin(), num_correct, true);
      double sum = 0, count = 0;
      std::vector<double> with(5), with_count(5);
      for (unsigned subset = 0; subset < 32; ++subset) {
        if (std::popcount(subset) != k) continue;
        bool passes = false;
        for (size_t i = 0; i < 5; ++i) passes |= ((subset >> i) & 1) && correct[i];
        ++count;
        sum += passes;
        for (size_t i = 0; i < 5; ++i) {
          with[i] += ((subset >> i) & 1) * passes;
          with_count[i] += (subset >> i) & 1;
        }
      }
      const double mean = sum / count, deviation = std::sqrt(mean * (1 - mean));
      const std::vector<float> got = PassAtKAdvantages(correct, k);
      for (size_t i = 0; i < 5; ++i) {
        const double want = deviation == 0 ? 0 : (with[i] / with_count[i] - mean) / deviation;
        EXPECT_NEAR(got[i], want, 1e-6) << num_correct << " of 5 correct, k " << k;
      }
    }
  }
}

// Expectation over groups of two draws from a policy over three actions: a baseline that does not
// depend on the own draw leaves the policy gradient unbiased.
double ExpectedGradient(AdvantageKind kind, size_t logit) {
  const std::vector<double> p = {0.5, 0.3, 0.2}, reward = {1, -2, 4};
  double sum = 0;
  for (size_t a = 0; a < 3; ++a) {
    for (size_t b = 0; b < 3; ++b) {
      const auto advantages = ComputeAdvantages(
          {.rewards = {reward[a], reward[b]}, .baseline = reward[0]}, OfKind(kind));
      const double scores[] = {(a == logit) - p[logit], (b == logit) - p[logit]};
      sum += p[a] * p[b] * (advantages[0] * scores[0] + advantages[1] * scores[1]) / 2;
    }
  }
  return sum;
}

TEST(Unbiasedness, OfReMaxRlooAndReinforceByEnumeration) {
  const std::vector<double> p = {0.5, 0.3, 0.2}, reward = {1, -2, 4};
  const double mean = 0.5 * 1 - 0.3 * 2 + 0.2 * 4;
  for (size_t logit = 0; logit < 3; ++logit) {
    const double gradient = p[logit] * (reward[logit] - mean);
    for (const auto kind :
         {AdvantageKind::kGreedyBaseline, AdvantageKind::kLeaveOneOut, AdvantageKind::kNone}) {
      EXPECT_NEAR(ExpectedGradient(kind, logit), gradient, 1e-6);
    }
    EXPECT_NEAR(ExpectedGradient(AdvantageKind::kMeanOnly, logit), gradient / 2, 1e-6)
        << "the own reward is in the mean of two";
  }
}

// Two members, steps of rewards (1, 0) and (0.5): mean 0.5, population deviation sqrt(1/6).
TEST(StepRewards, AreNormalisedOverTheGroupAndSummedFromEachTokenOn) {
  const std::vector<std::vector<RewardedStep>> steps = {{{2, 1}, {3, 0}}, {{2, 0.5}}};
  const std::vector<int64_t> lengths = {4, 2};
  AdvantageOptions options = {.std_convention = StdConvention::kPopulation, .eps = 0};
  const double std = std::sqrt(1.0 / 6);
  auto got = StepAdvantages(steps, lengths, options);
  const auto unit = static_cast<float>(0.5 / std);
  EXPECT_THAT(got[0], ElementsAre(FloatNear(0, 1e-6f), FloatNear(0, 1e-6f), FloatEq(-unit), 0))
      << "0.5 - 0.5 from the start, -0.5 in the second step, nothing after it";
  EXPECT_THAT(got[1], Each(FloatNear(0, 1e-6f)));
  options.kind = AdvantageKind::kLeaveOneOut;
  got = StepAdvantages(steps, lengths, options);
  // The others' mean is 0.5 for the first member and 0.5 for the second.
  EXPECT_THAT(got[0], ElementsAre(FloatEq(0), FloatEq(0), FloatEq(-0.5f), 0));
}

TEST(StepRewards, OfOneStepEachAreTheAdvantagesOfTheCompletions) {
  const std::vector<std::vector<RewardedStep>> steps = {{{3, 1}}, {{1, 0}}, {{2, 0.25}}};
  const std::vector<int64_t> lengths = {3, 1, 2};
  for (const auto kind :
       {AdvantageKind::kGroupNorm, AdvantageKind::kMeanOnly, AdvantageKind::kLeaveOneOut}) {
    const auto whole = ComputeAdvantages({.rewards = {1, 0, 0.25}}, OfKind(kind));
    const auto got = StepAdvantages(steps, lengths, OfKind(kind));
    for (size_t i = 0; i < 3; ++i) EXPECT_THAT(got[i], Each(FloatNear(whole[i], 1e-6f)));
  }
}

ScoredGroup GroupOf(const std::vector<int>& lengths) {
  ScoredGroup group;
  for (const int length : lengths) {
    auto* const completion = group.add_completions()->mutable_completion();
    for (int t = 0; t < length; ++t) completion->add_token_ids(t);
  }
  return group;
}

TEST(ScoreGroupWithSteps, TheLastStepEndsWithTheCompletionAndHasItsReward) {
  ScoredGroup group = GroupOf({5, 2});
  const std::vector<Reward> rewards = {{.value = 1}, {.value = 0}};
  const std::vector<std::vector<RewardedStep>> steps = {{{2, 0.25}, {4, -0.5}}, {}};
  ASSERT_THAT(ScoreGroup(rewards, steps, OfKind(AdvantageKind::kMeanOnly), &group), IsOk());
  const auto& first = group.completions(0);
  EXPECT_THAT(first.token_rewards(), ElementsAre(0, 0.25, 0, 0, 0.5));
  EXPECT_THAT(first.step_ends(), ElementsAre(2, 5));
  EXPECT_DOUBLE_EQ(first.reward(), 0.75);
  // Steps 0.25, 0.5 and 0, mean 0.25: 0 + 0.25 from the start, 0.25 in the second step.
  EXPECT_THAT(first.token_advantages(), Each(FloatEq(0.25f)));
  EXPECT_THAT(group.completions(1).token_advantages(), Each(FloatEq(-0.25f)));
  EXPECT_FLOAT_EQ(group.completions(1).advantage(), -0.25f);
}

TEST(ScoreGroupWithSteps, RefusesStepsThatDoNotRise) {
  ScoredGroup group = GroupOf({5});
  const std::vector<Reward> rewards(1);
  const std::vector<std::vector<RewardedStep>> steps = {{{4, 1}, {4, 1}, {5, 1}}};
  EXPECT_THAT(ScoreGroup(rewards, steps, {}, &group),
              FailsWith(absl::StatusCode::kInvalidArgument, "ends at token 4 of 5, after one"));
}

TEST(GreedyBaseline, HasTheLastRewardAndMasksTheGroupWhereThatFailed) {
  const auto scored = [](const Reward& of_baseline) {
    ScoredGroup group = GroupOf({1, 1});
    group.mutable_baseline();
    const std::vector<Reward> rewards = {{.value = 1}, {.value = 0}, of_baseline};
    EXPECT_THAT(ScoreGroup(rewards, {}, OfKind(AdvantageKind::kGreedyBaseline), &group), IsOk());
    return group;
  };
  const ScoredGroup group = scored({.value = 0.25});
  EXPECT_EQ(group.completions(0).advantage(), 0.75f);
  EXPECT_EQ(group.completions(1).advantage(), -0.25f);
  const ScoredGroup failed = scored({.mask_reason = "reward_failed: judge"});
  EXPECT_TRUE(failed.completions(0).masked());
  EXPECT_EQ(failed.completions(0).drop_reason(), "baseline_reward_failed: judge");
  EXPECT_FALSE(scored({.value = 1, .mask_reason = "truncated"}).completions(0).masked());
}

TEST(Imitation, KeepsTheBestMemberAlone) {
  ScoredGroup group = GroupOf({1, 1, 1, 1});
  const std::vector<Reward> rewards = {
      {.value = 0.5}, {.value = 2, .mask_reason = "truncated"}, {.value = 1}, {.value = 1}};
  ASSERT_THAT(ScoreGroup(rewards, {}, OfKind(AdvantageKind::kBestOfN), &group), IsOk());
  EXPECT_FALSE(group.completions(2).masked()) << "the first of the best that count";
  EXPECT_EQ(group.completions(2).advantage(), 1);
  for (const int i : {0, 3}) EXPECT_EQ(group.completions(i).drop_reason(), "not_best");
  EXPECT_EQ(group.completions(1).drop_reason(), "truncated");
}

TEST(Imitation, KeepsEachCorrectMember) {
  ScoredGroup group = GroupOf({1, 1, 1});
  const std::vector<Reward> rewards = {{.correct = true}, {}, {.correct = true}};
  ASSERT_THAT(ScoreGroup(rewards, {}, OfKind(AdvantageKind::kCorrectOnly), &group), IsOk());
  EXPECT_EQ(group.completions(0).advantage(), 1);
  EXPECT_EQ(group.completions(1).drop_reason(), "not_correct");
  EXPECT_EQ(group.completions(2).advantage(), 1);
}

TEST(Pairs, AreTheBestAndTheWorstMemberThatCount) {
  ScoredGroup group = GroupOf({1, 1, 1, 1, 1});
  const std::vector<Reward> rewards = {{.value = 0.5},
                                       {.value = 1},
                                       {.value = 9, .mask_reason = "truncated"},
                                       {.value = 1},
                                       {.value = 0}};
  ASSERT_THAT(ScoreGroup(rewards, {}, OfKind(AdvantageKind::kBestWorst), &group), IsOk());
  EXPECT_EQ(group.completions(1).advantage(), 1) << "the first of the best";
  EXPECT_EQ(group.completions(4).advantage(), -1);
  for (const int i : {0, 3}) EXPECT_EQ(group.completions(i).drop_reason(), "not_of_pair");
  EXPECT_EQ(group.completions(2).drop_reason(), "truncated");
  EXPECT_FALSE(group.zero_variance());
}

TEST(Pairs, AreNoneAmongEqualRewardsOrOfOneMember) {
  for (const char* const mask : {"", "truncated"}) {
    ScoredGroup group = GroupOf({1, 1});
    const std::vector<Reward> rewards = {{.value = 1}, {.value = 1, .mask_reason = mask}};
    ASSERT_THAT(ScoreGroup(rewards, {}, OfKind(AdvantageKind::kBestWorst), &group), IsOk());
    EXPECT_TRUE(group.zero_variance()) << "so that the batch leaves it out";
    EXPECT_EQ(group.completions(0).advantage(), 0);
  }
  EXPECT_TRUE(DropsZeroVariance(OfKind(AdvantageKind::kBestWorst)));
  EXPECT_FALSE(DropsZeroVariance(OfKind(AdvantageKind::kNone)));
}

TEST(AdvantageOptions, RefusesWhatContradictsItself) {
  AdvantageOptions options = OfKind(AdvantageKind::kPassAtK);
  options.pass_k = 9;
  EXPECT_THAT(CheckOptions(options, 8),
              FailsWith(absl::StatusCode::kInvalidArgument, "advantage.pass_k is 9, over"));
  options = OfKind(AdvantageKind::kGae);
  EXPECT_THAT(CheckOptions(options, 8), IsOk());
  options.drop_zero_variance = true;
  EXPECT_THAT(CheckOptions(options, 8),
              FailsWith(absl::StatusCode::kInvalidArgument, "drop_zero_variance"));
  options = OfKind(AdvantageKind::kBestWorst);
  EXPECT_THAT(CheckOptions(options, 1),
              FailsWith(absl::StatusCode::kInvalidArgument, "set it to 2 or more"));
  options.whiten = true;
  EXPECT_THAT(CheckOptions(options, 2),
              FailsWith(absl::StatusCode::kInvalidArgument, "no advantages to normalise"));
  options = OfKind(AdvantageKind::kBestOfN);
  options.whiten = true;
  EXPECT_THAT(CheckOptions(options, 8),
              FailsWith(absl::StatusCode::kInvalidArgument, "advantage.whiten"));
}

}  // namespace
}  // namespace tandem::trainer
