#include "trainer/advantages/batch_advantages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "tests/trainer/scored_groups.h"
#include "trainer/advantages/group_advantages.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::AddCompletion;
using ::tandem::testing::CutIntoTurns;
using ::tandem::testing::GroupWithPrompt;
using ::tandem::testing::ScoredGroup;

// One prompt of two tokens, completions of two and one tokens, rewards 1 and 0.
struct Case {
  std::vector<ScoredGroup> groups = {GroupWithPrompt(0, {3, 4})};
  ExperienceBatch batch;
  std::vector<float> proximal = std::vector<float>(6, -1), reference = proximal;

  Case() {
    AddCompletion(groups[0], {5, 6}, 0)->set_reward(1);
    AddCompletion(groups[0], {7}, 0)->set_reward(0);
  }

  // Packs with the group's advantages, as ScoreGroup sets them.
  void Pack(const AdvantageOptions& options) {
    GroupRewards counted;
    for (const auto& member : groups[0].completions()) {
      if (!member.masked()) counted.rewards.push_back(member.reward());
    }
    const std::vector<float> advantages = ComputeAdvantages(counted, options);
    size_t next = 0;
    for (auto& member : *groups[0].mutable_completions()) {
      if (!member.masked()) member.set_advantage(advantages[next++]);
    }
    batch = PackBatch(groups, {.vocab_size = 10}).value();
  }
  BatchAdvantages Set(const KlInReward& kl, const AdvantageOptions& options) {
    Pack(options);
    const auto length = static_cast<size_t>(batch.microbatches[0].row.num_tokens());
    return SetBatchAdvantages({.proximal = {std::span(proximal).first(length)},
                               .reference = {std::span(reference).first(length)}},
                              kl, options, batch);
  }
  double Charge(double coefficient = 0.5, AdvantageKind kind = AdvantageKind::kMeanOnly) {
    return Set({.coefficient = coefficient}, {.kind = kind}).kl_penalty;
  }
  const std::vector<float>& advantages() const { return batch.microbatches[0].advantages; }
};

TEST(KlInReward, TakesTheSumOverTheTokensOffAndCentresIt) {
  Case c;
  c.reference[2] = -1.4f;  // d = 0.4
  c.reference[3] = -0.8f;  // d = -0.2
  c.reference[4] = -2.0f;  // d = 1
  c.reference[0] = 9;      // of the prompt: not counted
  // Costs 0.5 x 0.2 and 0.5 x 1, mean 0.3; advantages 0.5 + 0.2 and -0.5 - 0.2.
  EXPECT_NEAR(c.Charge(), 0.3, 1e-6);
  EXPECT_NEAR(c.advantages()[2], 0.7, 1e-6);
  EXPECT_NEAR(c.advantages()[3], 0.7, 1e-6);
  EXPECT_NEAR(c.advantages()[4], -0.7, 1e-6);
  EXPECT_EQ(c.advantages()[0], 0);
}

TEST(KlInReward, WhereRewardsAreEqualTheChargeIsInProportionToItsCoefficient) {
  for (const AdvantageKind kind : {AdvantageKind::kGroupNorm, AdvantageKind::kMeanOnly}) {
    for (const double coefficient : {0.5, 0.05, 0.005}) {
      Case c;
      c.groups[0].mutable_completions(1)->set_reward(1);
      c.reference[4] = -2.0f;  // d = 1: costs 0 and the coefficient
      c.Charge(coefficient, kind);
      EXPECT_NEAR(c.advantages()[2], coefficient / 2, 1e-6);
      EXPECT_NEAR(c.advantages()[4], -coefficient / 2, 1e-6);
    }
  }
}

TEST(KlInReward, ATokenThatIsNotFiniteCostsNothing) {
  Case c;
  c.proximal[3] = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(c.Charge(), 0);
  EXPECT_NEAR(c.advantages()[2], 0.5, 1e-6);
}

TEST(KlInReward, AMaskedMemberIsNeitherChargedNorCounted) {
  Case c;
  AddCompletion(c.groups[0], {8}, 0)->set_masked(true);
  c.groups[0].mutable_completions(2)->set_reward(100);
  EXPECT_EQ(c.Charge(), 0);
  EXPECT_NEAR(c.advantages()[2], 0.5, 1e-6);
  EXPECT_NEAR(c.advantages()[4], -0.5, 1e-6);
}

TEST(KlPerToken, TakesTheCostFromEachTokenOnOffAndIsNotCentred) {
  Case c;
  c.reference[2] = -1.4f;  // d = 0.4
  c.reference[3] = -0.8f;  // d = -0.2
  c.reference[4] = -2.0f;  // d = 1
  const BatchAdvantages got = c.Set({.coefficient = 0.5, .per_token = true},
                                    {.kind = AdvantageKind::kMeanOnly, .value = {.gamma = 0.5}});
  // Of token 2: 0.5 (0.4 + 0.5 x -0.2) = 0.15; of token 3: 0.5 x -0.2; of token 4: 0.5.
  EXPECT_NEAR(got.kl_penalty, (0.1 + 0.5) / 2, 1e-6);
  EXPECT_NEAR(c.advantages()[2], 0.5 - 0.15, 1e-6);
  EXPECT_NEAR(c.advantages()[3], 0.5 + 0.1, 1e-6);
  EXPECT_NEAR(c.advantages()[4], -0.5 - 0.5, 1e-6);
}

TEST(ReturnIncludingThePrompt, WouldChargeTokensThatNobodyDrew) {
  Case c;
  c.reference[0] = c.reference[1] = -9;
  c.Set({.coefficient = 1, .per_token = true}, {.kind = AdvantageKind::kNone});
  EXPECT_EQ(c.advantages()[0], 0);
  EXPECT_EQ(c.advantages()[1], 0);
  EXPECT_EQ(c.advantages()[2], 1);
}

TEST(ReturnFromEachToken, IsTheAdvantageWithoutABaseline) {
  Case c;
  auto* const member = c.groups[0].mutable_completions(0);
  member->add_token_rewards(0.75);
  member->add_token_rewards(0.25);
  c.reference[3] = -2.0f;  // d = 1
  c.Set({.coefficient = 0.5, .per_token = true},
        {.kind = AdvantageKind::kNone, .value = {.gamma = 0.5}});
  EXPECT_NEAR(c.advantages()[3], 0.25 - 0.5, 1e-6);
  EXPECT_NEAR(c.advantages()[2], 0.75 + 0.5 * (0.25 - 0.5), 1e-6);
  EXPECT_NEAR(c.advantages()[4], 0, 1e-6);
}

// Token advantages 1, 1 and 0: mean 2/3, variance of a sample 1/3.
TEST(WhiteningPerRow, IsNotWhatIsDoneButOverAllTokensOfTheBatch) {
  Case c;
  c.Pack({.kind = AdvantageKind::kNone});
  // A second row with equal tokens: whitened alone it would be 0.
  c.batch.microbatches.push_back(c.batch.microbatches[0]);
  c.batch.completions.push_back(c.batch.completions[0]);
  c.batch.completions.back().microbatch = 1;
  WhitenAdvantages(c.batch);
  // 1, 1, 0, 1, 1: mean 0.8, variance 0.2
  const double root = std::sqrt(0.2 + 1e-8);
  EXPECT_NEAR(c.advantages()[2], 0.2 / root, 1e-6);
  EXPECT_NEAR(c.advantages()[4], -0.8 / root, 1e-6);
  EXPECT_NEAR(c.batch.microbatches[1].advantages[2], 0.2 / root, 1e-6);
  EXPECT_EQ(c.advantages()[0], 0) << "of the prompt";
}

TEST(Whitening, OfOneTokenIsZero) {
  Case c;
  c.groups[0].mutable_completions()->RemoveLast();
  c.groups[0].mutable_completions(0)->set_masked(true);
  AddCompletion(c.groups[0], {7}, 3);
  c.groups[0].mutable_completions(1)->set_reward(3);
  c.Pack({.kind = AdvantageKind::kNone});
  WhitenAdvantages(c.batch);
  EXPECT_EQ(c.advantages()[2], 0);
}

// Values 0.5, 0.25 of the first completion and 0.5 of the second, which was truncated with 0.8 to
// come.
TEST(Critic, GivesAdvantagesAndTargetsOfEachCompletion) {
  Case c;
  c.groups[0].mutable_completions(1)->mutable_completion()->set_finish_reason(
      rollout::v1::FINISH_REASON_LENGTH);
  const AdvantageOptions options = {.kind = AdvantageKind::kGae, .value = {.lambda = 0.5}};
  c.Pack(options);
  c.reference[2] = -1.4f;  // d = 0.4: a reward of -0.2
  const std::vector<float> values = {9, 9, 0.5f, 0.25f, 0.5f}, bootstraps = {9, 0.8f};
  const BatchAdvantages got =
      SetBatchAdvantages({.proximal = {std::span(c.proximal).first(5)},
                          .reference = {std::span(c.reference).first(5)},
                          .values = {values},
                          .bootstraps = bootstraps},
                         {.coefficient = 0.5, .per_token = true}, options, c.batch);
  // delta of token 3: 1 - 0.25; of token 2: -0.2 + 0.25 - 0.5; of token 4: 0.8 - 0.5
  EXPECT_NEAR(c.advantages()[3], 0.75, 1e-6);
  EXPECT_NEAR(c.advantages()[2], -0.45 + 0.5 * 0.75, 1e-6);
  EXPECT_NEAR(c.advantages()[4], 0.3, 1e-6);
  EXPECT_NEAR(got.critic.targets[0][3], 1, 1e-6);
  EXPECT_NEAR(got.critic.targets[0][2], 0.5 - 0.075, 1e-6);
  EXPECT_NEAR(got.critic.targets[0][4], 0.8, 1e-6);
  EXPECT_EQ(got.critic.targets[0][0], 0) << "of the prompt";
  EXPECT_NEAR(got.critic.value_mean, 1.25 / 3, 1e-6);
  EXPECT_NEAR(got.critic.target_mean, 2.225 / 3, 1e-6);
}

// One completion of two turns with a given token between them, places 2, 3 (given) and 4.
TEST(Critic, PassesOverWhatWasGivenBetweenTwoTurns) {
  Case c;
  c.groups[0].clear_completions();
  CutIntoTurns(AddCompletion(c.groups[0], {5, 6, 7}, 0), {1, 1, 1})->set_reward(1);
  const AdvantageOptions options = {.kind = AdvantageKind::kGae, .value = {.lambda = 0.5}};
  c.Pack(options);
  c.reference[2] = -1.4f;  // d = 0.4: a reward of -0.2
  c.reference[3] = 7;      // of the given token: it costs nothing
  const std::vector<float> values = {9, 9, 0.5f, 9, 0.25f}, bootstraps = {0};
  const BatchAdvantages got =
      SetBatchAdvantages({.proximal = {std::span(c.proximal).first(5)},
                          .reference = {std::span(c.reference).first(5)},
                          .values = {values},
                          .bootstraps = bootstraps},
                         {.coefficient = 0.5, .per_token = true}, options, c.batch);
  // As of two tokens side by side: 1 - 0.25, and -0.2 + 0.25 - 0.5 + 0.5 x 0.75.
  EXPECT_NEAR(c.advantages()[4], 0.75, 1e-6);
  EXPECT_NEAR(c.advantages()[2], -0.45 + 0.5 * 0.75, 1e-6);
  EXPECT_EQ(c.advantages()[3], 0);
  EXPECT_EQ(got.critic.targets[0][3], 0);
  EXPECT_NEAR(got.critic.value_mean, 0.75 / 2, 1e-6);
  EXPECT_NEAR(got.kl_penalty, 0.2, 1e-6);
}

TEST(Critic, ReadsTheRatioOfProximalToBehaviourForItsTraces) {
  Case c;
  const AdvantageOptions options = {.kind = AdvantageKind::kRetrace, .value = {.lambda = 1}};
  c.Pack(options);
  // Behaviour log-probs of AddCompletion stay; the proximal policy makes token 3 half as likely.
  const float behaviour = c.batch.microbatches[0].behaviour_logprobs[3];
  c.proximal = c.batch.microbatches[0].behaviour_logprobs;
  c.proximal[3] = behaviour + std::log(0.5f);
  const std::vector<float> values = {0, 0, 0.5f, 0.25f, 0.5f}, bootstraps = {0, 0};
  SetBatchAdvantages({.proximal = {c.proximal}, .values = {values}, .bootstraps = bootstraps}, {},
                     options, c.batch);
  EXPECT_NEAR(c.advantages()[3], 0.75, 1e-6);
  EXPECT_NEAR(c.advantages()[2], -0.25 + 0.5 * 0.75, 1e-6);
}

}  // namespace
}  // namespace tandem::trainer
