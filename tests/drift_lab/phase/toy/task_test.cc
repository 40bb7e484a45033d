#include "drift_lab/phase/toy/task.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "drift_lab/phase/toy/batch.h"
#include "drift_lab/phase/toy/run.h"

namespace tandem::drift {
namespace {

TEST(ToyTaskTest, RewardsTheWholeStringOnly) {
  const Task task(3, 1);
  std::array string = {task.target(2, 0), task.target(2, 1), task.target(2, 2)};
  EXPECT_EQ(task.Reward(2, string), 1);
  string[2] = (string[2] + 1) % kTokens;
  EXPECT_EQ(task.Reward(2, string), 0);
}

// Over 16^2 completions of every prompt: sum of probability times reward.
TEST(ToyTaskTest, PassProbabilityIsWhatEnumerationGives) {
  const Task task(2, 5);
  const Parameters parameters = WarmStart(task, {}, 5);
  ContextTable policy(2);
  policy.Use(parameters);
  double expected = 0;
  for (int prompt = 0; prompt < kPrompts; ++prompt) {
    for (int a = 0; a < kTokens; ++a) {
      for (int b = 0; b < kTokens; ++b) {
        const double first = policy.At(ContextIndex({prompt, 0, kStart})).logprobs[a];
        const double second = policy.At(ContextIndex({prompt, 1, a})).logprobs[b];
        expected += std::exp(first + second) * task.Reward(prompt, std::array{a, b}) / kPrompts;
      }
    }
  }
  EXPECT_NEAR(task.PassProbability(policy), expected, 1e-14);
  EXPECT_GT(expected, 0.3);
}

TEST(ToyTaskTest, PassProbabilityIsTheMeanRewardOfManySamples) {
  const Task task(8, 2);
  const Parameters parameters = WarmStart(task, {}, 2);
  ContextTable policy(8);
  policy.Use(parameters);
  BehaviourPolicy on_policy({}, task, 2);
  const RandomNumbers random(2, Purpose::kToken);
  double sum = 0;
  constexpr int kBatches = 200;
  for (uint32_t step = 0; step < kBatches; ++step) {
    on_policy.Use(policy, step);
    for (const double reward : SampleBatch(on_policy, task, random, step).rewards) sum += reward;
  }
  // 25 600 samples: a standard error of at most .0031.
  EXPECT_NEAR(sum / (kBatches * kCompletions), task.PassProbability(policy), 4 * 0.0031);
}

TEST(ToyTaskTest, TheWarmStartStopsWhereItWasTold) {
  const Task task(8, 3);
  const Parameters parameters = WarmStart(task, {.pass_probability = 0.3}, 3);
  ContextTable policy(8);
  policy.Use(parameters);
  EXPECT_GE(task.PassProbability(policy), 0.30);
  EXPECT_LE(task.PassProbability(policy), 0.32);
}

TEST(ToyTaskTest, AdvantagesAreCentredAndScaledWithinAGroup) {
  // Two of eight: mean 1/4, variance (2 (3/4)^2 + 6 (1/4)^2) / 7 = 3/14.
  const std::vector<double> rewards = {1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
  const std::vector<float> advantages = Advantages(rewards);
  const double deviation = std::sqrt(3.0 / 14) + 1e-4;
  EXPECT_NEAR(advantages[0], 0.75 / deviation, 1e-6);
  EXPECT_NEAR(advantages[1], -0.25 / deviation, 1e-6);
  EXPECT_EQ(advantages[8], 0);  // a group of equals says nothing
}

TEST(ToyTaskTest, ABatchRecordsTheTrueLogProbabilityOfEachToken) {
  const Task task(8, 4);
  const Parameters parameters = WarmStart(task, {}, 4);
  ContextTable policy(8);
  policy.Use(parameters);
  BehaviourPolicy hot({.kind = GapKind::kTemperature, .strength = 2}, task, 4);
  hot.Use(policy, 0);
  const Batch batch = SampleBatch(hot, task, RandomNumbers(4, Purpose::kToken), 0);
  ASSERT_EQ(batch.tokens.size(), 1024u);
  for (size_t t = 0; t < batch.tokens.size(); ++t) {
    const Context context = ContextOf(batch.contexts[t]);
    EXPECT_EQ(context.position, static_cast<int>(t % 8));
    EXPECT_EQ(context.prompt, static_cast<int>(t / 64));
    EXPECT_EQ(context.previous, t % 8 == 0 ? kStart : batch.tokens[t - 1]);
    Distribution halved = policy.At(batch.contexts[t]).logits;
    for (double& logit : halved) logit /= 2;
    const auto token = static_cast<size_t>(batch.tokens[t]);
    EXPECT_NEAR(batch.behaviour_logprobs[t], LogSoftmax(halved)[token], 1e-6);
  }
}

}  // namespace
}  // namespace tandem::drift
