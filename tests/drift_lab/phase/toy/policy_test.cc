#include "drift_lab/phase/toy/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace tandem::drift {
namespace {

constexpr int kLength = 8;

Distribution LogsOf(std::initializer_list<double> first) {
  Distribution probabilities{};
  std::copy(first.begin(), first.end(), probabilities.begin());
  Distribution logs;
  for (size_t a = 0; a < kTokens; ++a) logs[a] = std::log(probabilities[a]);
  return logs;
}

TEST(ToyPolicyTest, HasTheParametersOfItsLayers) {
  // (16 prompts + 8 positions + 17 previous tokens + bias) x 64, then (64 + bias) x 16.
  EXPECT_EQ(NumParameters(8), 3728);
  EXPECT_EQ(NumParameters(24), 3728 + 16 * 64);
}

TEST(ToyPolicyTest, NumbersEveryContextOnce) {
  std::set<int> seen;
  for (int index = 0; index < NumContexts(kLength); ++index) {
    const Context context = ContextOf(index);
    EXPECT_EQ(ContextIndex(context), index);
    seen.insert((context.prompt * kLength + context.position) * 100 + context.previous);
  }
  EXPECT_EQ(seen.size(), 16u * 8 * 17);
}

TEST(ToyPolicyTest, ZeroParametersGiveTheUniformDistribution) {
  const Parameters zero(static_cast<size_t>(NumParameters(kLength)), 0.0);
  Evaluation evaluation;
  Evaluate(zero, kLength, {3, 2, 5}, evaluation);
  for (const double logprob : evaluation.logprobs) EXPECT_NEAR(logprob, -std::log(16), 1e-15);
}

TEST(ToyPolicyTest, AHiddenUnitIsTheTanhOfItsThreeRowsAndBias) {
  Parameters parameters(static_cast<size_t>(NumParameters(kLength)), 0.0);
  parameters[3 * kHidden + 1] = 0.1;                          // prompt 3, unit 1
  parameters[(16 + 2) * kHidden + 1] = 0.2;                   // position 2
  parameters[(16 + 8 + 5) * kHidden + 1] = 0.3;               // previous token 5
  parameters[(16 + 8 + 17) * kHidden + 1] = 0.4;              // bias
  parameters[(16 + 8 + 17 + 1) * kHidden + kTokens + 7] = 2;  // unit 1 to token 7
  Evaluation evaluation;
  Evaluate(parameters, kLength, {3, 2, 5}, evaluation);
  EXPECT_NEAR(evaluation.hidden[1], std::tanh(1.0), 1e-15);
  EXPECT_NEAR(evaluation.logits[7], 2 * std::tanh(1.0), 1e-15);
  EXPECT_EQ(evaluation.logits[6], 0);
  Evaluate(parameters, kLength, {4, 2, 5}, evaluation);
  EXPECT_NEAR(evaluation.hidden[1], std::tanh(0.9), 1e-15);
}

// Loss c . log pi at one context; its gradient at the logits is c - (sum c) pi.
TEST(ToyPolicyTest, GradientAgreesWithFiniteDifferences) {
  Parameters parameters = InitialParameters(kLength, 7);
  for (double& parameter : parameters) parameter *= 4;  // away from the flat start
  const Context context{9, 4, 11};
  Distribution c;
  for (size_t a = 0; a < kTokens; ++a) c[a] = std::sin(1.0 + static_cast<double>(a));
  const auto loss = [&] {
    Evaluation evaluation;
    Evaluate(parameters, kLength, context, evaluation);
    double sum = 0;
    for (size_t a = 0; a < kTokens; ++a) sum += c[a] * evaluation.logprobs[a];
    return sum;
  };
  Evaluation evaluation;
  Evaluate(parameters, kLength, context, evaluation);
  double sum = 0;
  for (const double coefficient : c) sum += coefficient;
  Distribution at_logits;
  for (size_t a = 0; a < kTokens; ++a) at_logits[a] = c[a] - sum * std::exp(evaluation.logprobs[a]);
  Parameters gradient(parameters.size());
  AddGradient(parameters, kLength, context, evaluation, at_logits, gradient);
  int num_nonzero = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const double kept = parameters[i], step = 1e-5;
    parameters[i] = kept + step;
    const double above = loss();
    parameters[i] = kept - step;
    const double below = loss();
    parameters[i] = kept;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-8) << i;
    num_nonzero += gradient[i] != 0;
  }
  EXPECT_EQ(num_nonzero, 4 * kHidden + kHidden * kTokens + kTokens);
}

TEST(ToyPolicyTest, KlDivergenceAndSurpriseOfHandWorkedDistributions) {
  const Distribution p = LogsOf({0.5, 0.5}), q = LogsOf({0.25, 0.75});
  EXPECT_NEAR(KlDivergence(p, q), 0.5 * std::log(2) + 0.5 * std::log(2.0 / 3), 1e-15);
  EXPECT_EQ(KlDivergence(p, p), 0);
  EXPECT_NEAR(Entropy(p), std::log(2), 1e-15);
}

TEST(ToyPolicyTest, DrawsTheTokenWhoseShareHoldsTheUniformNumber) {
  const Distribution p = LogsOf({0.25, 0, 0.5, 0.25});
  EXPECT_EQ(DrawToken(p, 0.1), 0);
  EXPECT_EQ(DrawToken(p, 0.3), 2);
  EXPECT_EQ(DrawToken(p, 0.74), 2);
  EXPECT_EQ(DrawToken(p, 0.76), 3);
  EXPECT_EQ(DrawToken(p, 1.0), 3);  // never a token without probability
}

}  // namespace
}  // namespace tandem::drift
