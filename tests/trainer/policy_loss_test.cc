#include "trainer/policy_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

namespace tandem::trainer {
namespace {

at::Tensor Vector(std::vector<float> values) { return at::tensor(values); }

// Inputs whose every token is kept, with weight 1 and scale 1.
LossInputs Inputs(std::vector<float> target, std::vector<float> proximal,
                  std::vector<float> advantages) {
  const auto n = static_cast<int64_t>(target.size());
  return {.target_logprobs = Vector(target).requires_grad_(true),
          .proximal_logprobs = Vector(proximal),
          .weight = at::ones({n}),
          .advantages = Vector(advantages),
          .kept = at::ones({n}, at::kBool),
          .scale = at::ones({n})};
}

at::Tensor Gradient(const LossInputs& inputs, const PolicyLossOptions& options) {
  SumPolicyLoss(inputs, options).total.backward();
  return inputs.target_logprobs.grad();
}

float Surrogate(float ratio, float advantage, const PolicyLossOptions& options) {
  return ClippedSurrogate(Vector({ratio}), Vector({advantage}), at::ones({1}), options)
      .item<float>();
}

TEST(PolicyLossTest, Bug08TheRatioOfEqualPoliciesIsOne) {
  const at::Tensor logprobs = Vector({-0.5f, -3.0f});
  EXPECT_TRUE(PolicyRatio(logprobs, logprobs).equal(at::ones({2})));
  EXPECT_FLOAT_EQ(PolicyRatio(Vector({-1.0f}), Vector({-1.5f})).item<float>(), std::exp(0.5f));
}

// r in {0.5, 1.5} with A in {+1, -1}: the gradient vanishes at (1.5, +) and (0.5, -) only.
TEST(PolicyLossTest, Bug28ClipsOnTheSideThatTheAdvantageNames) {
  const float up = std::log(1.5f), down = std::log(0.5f);
  const at::Tensor grad = Gradient(Inputs({up, up, down, down}, {0, 0, 0, 0}, {1, -1, 1, -1}), {});
  EXPECT_EQ(grad[0].item<float>(), 0);
  EXPECT_FLOAT_EQ(grad[1].item<float>(), 1.5f);  // d(-r A)/d log pi = -r A
  EXPECT_FLOAT_EQ(grad[2].item<float>(), -0.5f);
  EXPECT_EQ(grad[3].item<float>(), 0);
}

TEST(PolicyLossTest, CountsTheClipOnEachSide) {
  const float up = std::log(1.5f), down = std::log(0.5f);
  const LossSums sums =
      SumPolicyLoss(Inputs({up, up, down, down, up}, {0, 0, 0, 0, 0}, {1, -1, 1, -1, 2}), {});
  EXPECT_EQ(sums.clip_high.item<int64_t>(), 2);
  EXPECT_EQ(sums.clip_low.item<int64_t>(), 1);
  EXPECT_FLOAT_EQ(sums.ratio_max.item<float>(), 1.5f);
  EXPECT_FLOAT_EQ(sums.ratio_sum.item<float>(), 5.5f);
}

TEST(PolicyLossTest, ClipBoundsMayDiffer) {
  const PolicyLossOptions options = {.clip_low = 0.1, .clip_high = 0.4};
  EXPECT_FLOAT_EQ(Surrogate(2, 1, options), -1.4f);
  EXPECT_FLOAT_EQ(Surrogate(0.5f, -1, options), 0.9f);
}

TEST(PolicyLossTest, Bug29DualClipBoundsTheLossOfANegativeAdvantage) {
  EXPECT_FLOAT_EQ(Surrogate(100, -1, {}), 100);
  EXPECT_FLOAT_EQ(Surrogate(100, -1, {.dual_clip = 3}), 3);
  EXPECT_FLOAT_EQ(Surrogate(2, -1, {.dual_clip = 3}), 2);
  EXPECT_FLOAT_EQ(Surrogate(100, 1, {.dual_clip = 3}), -1.2f);
  const LossInputs inputs = Inputs({std::log(100.0f)}, {0}, {-1});
  EXPECT_EQ(SumPolicyLoss(inputs, {.dual_clip = 3}).dual_clip.item<int64_t>(), 1);
  EXPECT_EQ(Gradient(inputs, {.dual_clip = 3}).item<float>(), 0);
}

TEST(PolicyLossTest, Bug40LogRatiosOfFiftyStayFinite) {
  EXPECT_FLOAT_EQ(PolicyRatio(Vector({0.0f}), Vector({-50.0f})).item<float>(), std::exp(20.0f));
  EXPECT_FLOAT_EQ(PolicyRatio(Vector({-50.0f}), Vector({0.0f})).item<float>(), std::exp(-20.0f));
  LossInputs inputs = Inputs({-1.0f, -60.0f}, {-60.0f, -1.0f}, {-1, 1});
  inputs.reference_logprobs = Vector({-60.0f, -1.0f});
  const LossSums sums = SumPolicyLoss(inputs, {.kl_coefficient = 1});
  EXPECT_TRUE(std::isfinite(sums.total.item<float>()));
}

TEST(PolicyLossTest, Bug10WhatIsNotKeptHasNoGradientWhateverItHolds) {
  LossInputs inputs = Inputs({-1, -2, -3}, {-1, NAN, -INFINITY}, {1, NAN, 5});
  inputs.weight = Vector({1, NAN, NAN});
  inputs.kept = at::tensor({1, 0, 0}).to(at::kBool);
  EXPECT_FLOAT_EQ(SumPolicyLoss(inputs, {}).total.item<float>(), -1);
  const at::Tensor grad = Gradient(inputs, {});
  EXPECT_FLOAT_EQ(grad[0].item<float>(), -1);
  EXPECT_EQ(grad[1].item<float>(), 0);
  EXPECT_EQ(grad[2].item<float>(), 0);
}

TEST(PolicyLossTest, Bug06AGradientHeldByTheAdvantagesIsCut) {
  const at::Tensor advantages = Vector({2}).requires_grad_(true);
  LossInputs inputs = Inputs({-1}, {-1}, {2});
  inputs.advantages = advantages;
  EXPECT_FLOAT_EQ(Gradient(inputs, {}).item<float>(), -2);
  EXPECT_FALSE(advantages.grad().defined());
}

TEST(PolicyLossTest, Bug14AGradientHeldByTheProximalLogprobsIsCut) {
  // Were it not, the ratio of equal policies would have no gradient at all.
  const at::Tensor logprobs = Vector({-1}).requires_grad_(true);
  LossInputs inputs = Inputs({0}, {0}, {2});
  inputs.target_logprobs = inputs.proximal_logprobs = logprobs;
  SumPolicyLoss(inputs, {}).total.backward();
  EXPECT_FLOAT_EQ(logprobs.grad().item<float>(), -2);
}

TEST(PolicyLossTest, Bug27AGradientHeldByTheWeightIsCut) {
  const at::Tensor weight = Vector({1.5f}).requires_grad_(true);
  LossInputs inputs = Inputs({-1}, {-1}, {2});
  inputs.weight = weight;
  EXPECT_FLOAT_EQ(Gradient(inputs, {}).item<float>(), -3);
  EXPECT_FALSE(weight.grad().defined());
}

// Two completions with the same advantage, of 1 and 10 tokens.
class LossScalesTest : public ::testing::Test {
 protected:
  LossScalesTest() : counted_(at::ones({11}, at::kBool)), completion_(at::ones({11}, at::kLong)) {
    completion_[0] = 0;
  }
  at::Tensor counted_, completion_;
};

TEST_F(LossScalesTest, Bug16TenPlacesOfPaddingChangeNothing) {
  const at::Tensor counted = at::cat({counted_, at::zeros({10}, at::kBool)});
  const at::Tensor completion = at::cat({completion_, at::full({10}, 1, at::kLong)});
  for (const Normalisation normalisation : {Normalisation::kToken, Normalisation::kSequence}) {
    const PolicyLossOptions options = {.normalisation = normalisation};
    const LossScales bare = ComputeLossScales(counted_, completion_, 2, options);
    const LossScales padded = ComputeLossScales(counted, completion, 2, options);
    EXPECT_EQ(padded.denominator, bare.denominator);
    EXPECT_TRUE(padded.scale.slice(0, 0, 11).equal(bare.scale));
    EXPECT_EQ(padded.scale.slice(0, 11).abs().sum().item<float>(), 0);
  }
}

TEST_F(LossScalesTest, Bug17TokenNormalisationCountsEachTokenAlike) {
  const LossScales s =
      ComputeLossScales(counted_, completion_, 2, {.normalisation = Normalisation::kToken});
  EXPECT_TRUE(s.scale.equal(at::ones({11})));
  EXPECT_EQ(s.denominator, 11);
}

TEST_F(LossScalesTest, Bug17SequenceNormalisationCountsEachCompletionAlike) {
  const LossScales s =
      ComputeLossScales(counted_, completion_, 2, {.normalisation = Normalisation::kSequence});
  EXPECT_FLOAT_EQ(s.scale[0].item<float>(), 1);
  EXPECT_FLOAT_EQ(s.scale[1].item<float>(), 0.1f);
  EXPECT_EQ(s.denominator, 2);
}

TEST_F(LossScalesTest, Bug17ConstantNormalisationHasNoLengthInIt) {
  const LossScales s = ComputeLossScales(
      counted_, completion_, 2, {.normalisation = Normalisation::kConstant, .constant_length = 16});
  EXPECT_TRUE(s.scale.equal(at::ones({11})));
  EXPECT_EQ(s.denominator, 32);
}

TEST_F(LossScalesTest, Bug21TokensThatDoNotCountLeaveTheDivisor) {
  counted_.slice(0, 6).fill_(false);
  const LossScales token = ComputeLossScales(counted_, completion_, 2, {});
  EXPECT_EQ(token.denominator, 6);
  EXPECT_EQ(token.scale[7].item<float>(), 0);
  const LossScales sequence =
      ComputeLossScales(counted_, completion_, 2, {.normalisation = Normalisation::kSequence});
  EXPECT_FLOAT_EQ(sequence.scale[1].item<float>(), 0.2f);
}

// A policy over four actions by softmax of logits, a reference, and expectations by enumeration:
// every action is a token, weighted by its probability.
class KlGradientTest : public ::testing::Test {
 protected:
  using Options = PolicyLossOptions;
  const at::Tensor logits_ = at::tensor({0.3, -0.7, 1.1, 0.2}, at::kDouble);
  const at::Tensor reference_ = at::log_softmax(at::tensor({-0.4, 0.9, 0.1, 0.5}, at::kDouble), 0);
  const at::Tensor behaviour_ = at::log_softmax(at::tensor({0.8, 0.1, -0.3, 0.6}, at::kDouble), 0);

  at::Tensor GradientOf(const std::function<at::Tensor(const at::Tensor&)>& f) const {
    const at::Tensor logits = logits_.clone().requires_grad_(true);
    f(at::log_softmax(logits, 0)).sum().backward();
    return logits.grad();
  }
  // Gradient of KL(target || reference), and of KL(reference || target).
  at::Tensor Reverse() const {
    return GradientOf([&](const at::Tensor& p) { return p.exp() * (p - reference_); });
  }
  at::Tensor Forward() const {
    return GradientOf([&](const at::Tensor& p) { return reference_.exp() * (reference_ - p); });
  }
  // Expected gradient of the estimator as a loss on tokens drawn from `sampler`.
  at::Tensor Expected(KlEstimator estimator, const at::Tensor& sampler, bool weighted) const {
    return GradientOf([&](const at::Tensor& p) {
      const at::Tensor rho = at::exp(p - sampler.detach());
      return sampler.detach().exp() *
             ReferenceKl(p, reference_, rho,
                         {.kl_estimator = estimator, .kl_ratio_weighted = weighted});
    });
  }
  at::Tensor OnPolicy(KlEstimator estimator) const {
    return Expected(estimator, at::log_softmax(logits_, 0), false);
  }
  static void ExpectNear(const at::Tensor& a, const at::Tensor& b) {
    EXPECT_LT((a - b).abs().max().item<double>(), 1e-12) << a << b;
  }
  static void ExpectFar(const at::Tensor& a, const at::Tensor& b) {
    EXPECT_GT((a - b).abs().max().item<double>(), 1e-3);
  }
};

TEST_F(KlGradientTest, Bug23K1AsALossHasNoExpectedGradient) {
  ExpectNear(OnPolicy(KlEstimator::kK1), at::zeros({4}, at::kDouble));
  // The gradient of the ratio is what makes k1 a loss.
  ExpectNear(Expected(KlEstimator::kK1, at::log_softmax(logits_, 0), true), Reverse());
}

TEST_F(KlGradientTest, K2AsALossHasTheGradientOfTheReverseKl) {
  ExpectNear(OnPolicy(KlEstimator::kK2), Reverse());
}

TEST_F(KlGradientTest, Bug24K3AsALossHasTheGradientOfTheForwardKl) {
  ExpectNear(OnPolicy(KlEstimator::kK3), Forward());
  ExpectFar(OnPolicy(KlEstimator::kK3), Reverse());
}

TEST_F(KlGradientTest, Bug25WeightedByTheRatioEveryEstimatorHasTheReverseGradientOffPolicy) {
  for (const KlEstimator e : {KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3}) {
    ExpectNear(Expected(e, behaviour_, true), Reverse());
    ExpectFar(Expected(e, behaviour_, false), Reverse());
  }
}

TEST_F(KlGradientTest, Bug22AStepDownTheLossMovesTowardsTheReference) {
  const auto kl = [&](const at::Tensor& logits) {
    const at::Tensor p = at::log_softmax(logits, 0);
    return (p.exp() * (p - reference_)).sum().item<double>();
  };
  for (const KlEstimator e : {KlEstimator::kK2, KlEstimator::kK3}) {
    EXPECT_LT(kl(logits_ - 0.1 * OnPolicy(e)), kl(logits_));
  }
  // And the sign with which it enters the loss.
  LossInputs inputs = Inputs({-1.0f}, {-1.0f}, {0});
  inputs.reference_logprobs = Vector({-2.0f});
  EXPECT_GT(Gradient(inputs, {.kl_coefficient = 1, .kl_estimator = KlEstimator::kK2}).item<float>(),
            0);  // likelier than the reference says: less likely next
}

TEST(PolicyLossTest, EstimatorsHaveTheirClosedForms) {
  LossInputs inputs = Inputs({-1.0f}, {-1.0f}, {0});
  inputs.reference_logprobs = Vector({-1.5f});
  const LossSums sums = SumPolicyLoss(inputs, {});
  EXPECT_FLOAT_EQ(sums.k1.item<float>(), 0.5f);
  EXPECT_FLOAT_EQ(sums.k2.item<float>(), 0.125f);
  EXPECT_FLOAT_EQ(sums.k3.item<float>(), std::exp(-0.5f) - 0.5f);
  EXPECT_EQ(sums.total.item<float>(), 0) << "without a coefficient the KL is only measured";
}

}  // namespace
}  // namespace tandem::trainer
