#include "trainer/loss/policy_loss.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "common/offpolicy/policy_objective.h"
#include "trainer/loss/correction_tensors.h"

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
          .completion = at::zeros({n}, at::kLong),
          .scale = at::ones({n})};
}

at::Tensor Gradient(const LossInputs& inputs, const PolicyLossOptions& options) {
  SumPolicyLoss(inputs, options).total.backward();
  return inputs.target_logprobs.grad();
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
  EXPECT_EQ(sums.clip_high, 2);
  EXPECT_EQ(sums.clip_low, 1);
  EXPECT_FLOAT_EQ(sums.ratio_max.item<float>(), 1.5f);
  EXPECT_FLOAT_EQ(sums.ratio_sum.item<float>(), 5.5f);
}

// Several completions, weights and scales: what autograd makes of the loss is slope x scale, and
// its value is that of the objective.
TEST(PolicyLossTest, GradientAndValueAreThoseOfTheObjective) {
  using offpolicy::ObjectiveKind;
  LossInputs inputs = Inputs({-1, -2, -0.5, -1.35, -0.7}, {-1.1f, -1.95f, -0.5f, -1.2f, -0.9f},
                             {1.5f, 1.5f, 1.5f, -0.75f, -0.75f});
  inputs.weight = Vector({0.5, 2, 1, 1.5, 0.25});
  inputs.completion = at::tensor({4, 4, 4, 7, 7}, at::kLong);
  inputs.scale = Vector({0.25, 0.25, 0.25, 0.5, 0.5});
  for (const ObjectiveKind kind :
       {ObjectiveKind::kClip, ObjectiveKind::kCispo, ObjectiveKind::kTopr, ObjectiveKind::kGspo,
        ObjectiveKind::kSapo, ObjectiveKind::kVespo, ObjectiveKind::kM2po, ObjectiveKind::kDppoTv,
        ObjectiveKind::kDppoKl}) {
    const PolicyLossOptions options = {.objective = {.kind = kind}};
    const std::vector<double> target = ToDoubles(inputs.target_logprobs),
                              centre = ToDoubles(inputs.proximal_logprobs),
                              weight = ToDoubles(inputs.weight), a = ToDoubles(inputs.advantages),
                              scale = ToDoubles(inputs.scale);
    const std::vector<uint8_t> kept(5, 1);
    const std::vector<int64_t> completion = {4, 4, 4, 7, 7};
    const offpolicy::Objective want = offpolicy::ComputeObjective(
        {target, centre, weight, a, kept, completion}, options.objective);
    inputs.target_logprobs.mutable_grad() = at::Tensor();
    const LossSums sums = SumPolicyLoss(inputs, options);
    sums.total.backward();
    double value = 0;
    for (int64_t t = 0; t < 5; ++t) {
      value += scale[t] * want.value[t];
      EXPECT_FLOAT_EQ(inputs.target_logprobs.grad()[t].item<float>(),
                      static_cast<float>(scale[t] * want.slope[t]));
    }
    EXPECT_NEAR(sums.policy.item<double>(), value, 1e-6);
    EXPECT_EQ(sums.total.item<float>(), sums.policy.item<float>());
    EXPECT_FALSE(sums.policy.requires_grad());
  }
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
  LossInputs inputs = Inputs({-1, NAN, -INFINITY}, {-1, NAN, -INFINITY}, {1, NAN, 5});
  inputs.weight = Vector({1, NAN, NAN});
  inputs.kept = at::tensor({1, 0, 0}).to(at::kBool);
  EXPECT_FLOAT_EQ(SumPolicyLoss(inputs, {}).total.item<float>(), -1);
  EXPECT_FLOAT_EQ(SumPolicyLoss(inputs, {}).ratio_sum.item<float>(), 1);
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
