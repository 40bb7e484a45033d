// A policy with adapters (LoRA) beside its frozen weights.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/model/quantisation_plan.h"
#include "common/tensor/host_tensor_conversion.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/test_devices.h"
#include "tests/trainer/toy_model.h"
#include "trainer/policy/policy.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ModelConfig Untied() {
  ModelConfig config = ToyConfig();
  config.tie_word_embeddings = false;
  config.attention_qkv_bias = true;
  return config;
}

// Projections joined as in Phi-3.
ModelConfig Fused() {
  ModelConfig config = ToyConfig();
  config.fused_qkv = config.fused_gate_up = true;
  return config;
}

struct Made {
  ModelConfig config = ToyConfig();
  LoraOptions lora = {.rank = 3, .alpha = 6};
  ComputeDType dtype = ComputeDType::kFp32;
  Numerics numerics = Numerics::kFast;
  QuantisationOptions quantised = {};
  Device device = Device::kCpu;
};

std::unique_ptr<Policy> Make(const Made& made) {
  const QuantisationPlan plan = MakeQuantisationPlan(made.config, made.quantised).value();
  return Policy::Create(made.config, ToyWeights(made.config), made.dtype, /*trainable=*/true,
                        made.numerics, made.device, {plan, made.lora})
      .value();
}

// Gives all adapters random values, so that they matter.
void Randomise(Policy& policy, double spread = 0.2) {
  const at::NoGradGuard no_grad;
  at::manual_seed(5);
  for (const NamedParameter& parameter : policy.parameters()) {
    parameter.master.copy_(at::randn(parameter.master.sizes()) * spread);
  }
  policy.WeightsChanged();
}

// A policy without adapters over the weights that these make of the base.
std::unique_ptr<Policy> Merged(const Policy& policy, const Made& made) {
  std::vector<HostTensor> tensors;
  const bool bf16 = made.dtype == ComputeDType::kBf16;
  for (const NamedParameter& parameter : policy.base()) {
    at::Tensor base = parameter.master.detach().cpu();
    if (bf16) base = base.to(at::kBFloat16);
    const auto module = policy.adapters().Find(parameter.name);
    if (module) base = policy.adapters().Merged(*module, base);
    if (bf16) base = base.to(at::kBFloat16);
    tensors.push_back(ToHostTensor(parameter.name, base).value());
  }
  const QuantisationPlan plan = MakeQuantisationPlan(made.config, made.quantised).value();
  return Policy::Create(made.config, tensors, made.dtype, false, made.numerics, made.device, {plan})
      .value();
}

PackedRow Row() {
  static const std::vector<int32_t> kOne = {3, 9, 4, 1}, kTwo = {5, 6, 2, 7, 8, 2},
                                    kThree = {11, 2};
  const GroupTokens group = {.prompt = kOne, .completions = {kTwo, kThree}};
  return PackRow({&group, 1}).value();
}

at::Tensor Logprobs(Policy& policy, const LoraPass& pass = {}) {
  return policy.Run(Row(), {.temperature = 0.9, .lora = pass}).value().logprobs;
}

class PolicyAdaptersTest : public ::testing::TestWithParam<Device> {
 protected:
  Made WithDevice(Made made) const {
    made.device = GetParam();
    return made;
  }
};

TEST_P(PolicyAdaptersTest, FreshAdaptersChangeNoLogprob) {
  const Made made = WithDevice({});
  Made without = made;
  without.lora = {};
  EXPECT_TRUE(Logprobs(*Make(made)).equal(Logprobs(*Make(without))));
}

TEST_P(PolicyAdaptersTest, LogprobsAreThoseOfTheMergedWeightsAndWithoutAdaptersThoseOfTheBase) {
  for (const ModelConfig& config : {ToyConfig(), Untied(), Fused()}) {
    Made made = WithDevice({.config = config});
    if (!config.tie_word_embeddings) made.lora.targets = {"all-linear", "lm_head"};
    const auto policy = Make(made);
    const at::Tensor fresh = Logprobs(*policy);
    Randomise(*policy);
    const at::Tensor got = Logprobs(*policy);
    EXPECT_LT((got - Logprobs(*Merged(*policy, made))).abs().max().item<float>(), 1e-5f);
    EXPECT_GT((got - fresh).abs().max().item<float>(), 0.1f);
    EXPECT_TRUE(Logprobs(*policy, {.enabled = false}).equal(fresh));
  }
}

// Only adapters are trained, and their gradients are those of the log-probs.
TEST_P(PolicyAdaptersTest, EveryGradientAgreesWithDifferences) {
  for (const ModelConfig& config : {Untied(), Fused()}) {
    for (const double dropout : {0.0, 0.3}) {
      Made made = WithDevice({.config = config});
      made.lora.dropout = dropout;
      made.lora.rslora = true;
      if (!config.tie_word_embeddings) made.lora.targets = {"all-linear", "lm_head"};
      const auto policy = Make(made);
      Randomise(*policy, 0.05);  // larger ones need smaller steps than fp32 can take
      const PassOptions options = {.with_gradient = true, .lora = {.dropout_seed = 77}};
      policy->Run(Row(), options).value().logprobs.sum().backward();
      const auto value = [&] {
        policy->WeightsChanged();
        return policy->Run(Row(), {.lora = options.lora})
            .value()
            .logprobs.to(at::kDouble)
            .sum()
            .item<double>();
      };
      ASSERT_EQ(policy->parameters().size(), 2 * policy->adapters().modules().size());
      for (const NamedParameter& parameter : policy->parameters()) {
        const at::Tensor master = parameter.master.detach(), saved = master.clone();
        at::manual_seed(17);
        const at::Tensor direction = at::randn(saved.sizes()).to(saved.device());
        const auto at_step = [&](double step) {
          master.copy_(saved + step * direction);
          return value();
        };
        constexpr double kStep = 2e-3;
        const double expected =
            (8 * (at_step(kStep) - at_step(-kStep)) - (at_step(2 * kStep) - at_step(-2 * kStep))) /
            (12 * kStep);
        master.copy_(saved);
        const double got = (parameter.master.grad() * direction).sum().item<double>();
        EXPECT_NEAR(got, expected, 1e-2 * std::max(1.0, std::abs(expected))) << parameter.name;
      }
      for (const NamedParameter& parameter : policy->base()) {
        EXPECT_FALSE(parameter.master.grad().defined()) << parameter.name;
      }
    }
  }
}

TEST_P(PolicyAdaptersTest, DropoutIsAFunctionOfItsSeedAndLeavesInputsOutOnlyWithOne) {
  Made made = WithDevice({});
  made.lora.dropout = 0.5;
  const auto policy = Make(made);
  Randomise(*policy);
  const at::Tensor none = Logprobs(*policy), first = Logprobs(*policy, {.dropout_seed = 1});
  EXPECT_TRUE(first.equal(Logprobs(*policy, {.dropout_seed = 1})));
  EXPECT_FALSE(first.equal(Logprobs(*policy, {.dropout_seed = 2})));
  EXPECT_FALSE(first.equal(none));
  made.lora.dropout = 0;
  const auto without = Make(made);
  Randomise(*without);
  EXPECT_TRUE(none.equal(Logprobs(*without)));
}

TEST_P(PolicyAdaptersTest, CheckpointedActivationsGiveTheSameGradientsBitForBit) {
  Made made = WithDevice({});
  made.lora.dropout = 0.3;
  const auto kept = Make(made), again = Make(made);
  again->CheckpointActivations(true);
  for (Policy* const policy : {kept.get(), again.get()}) {
    Randomise(*policy);
    policy->Run(Row(), {.with_gradient = true, .lora = {.dropout_seed = 3}})
        .value()
        .logprobs.sum()
        .backward();
  }
  for (size_t i = 0; i < kept->parameters().size(); ++i) {
    EXPECT_TRUE(kept->parameters()[i].master.grad().equal(again->parameters()[i].master.grad()))
        << kept->parameters()[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, PolicyAdaptersTest, ::testing::ValuesIn(testing::TestDevices()),
                         [](const auto& info) { return testing::NameOf(info.param); });

// What a server computes that merged the adapters when it got them: the weights of a bf16 server are
// rounded once, and those of one that quantises are quantised from there.
TEST(ExactAdaptersTest, LogprobsAreBitForBitThoseOfTheMergedWeights) {
  for (const ComputeDType dtype : {ComputeDType::kFp32, ComputeDType::kBf16}) {
    for (const WeightScheme scheme : {WeightScheme::kWide, WeightScheme::kInt8}) {
      for (const ModelConfig& config : {Untied(), Fused()}) {
        Made made = {.config = config, .dtype = dtype, .numerics = Numerics::kExact};
        made.quantised.weights = scheme;
        if (!config.tie_word_embeddings) made.lora.targets = {"all-linear", "lm_head"};
        const auto policy = Make(made);
        const at::Tensor base = Logprobs(*policy);
        for (int change = 0; change < 2; ++change) {  // as after each update
          Randomise(*policy, 0.2 + 0.1 * change);
          EXPECT_TRUE(Logprobs(*policy).equal(Logprobs(*Merged(*policy, made))));
          EXPECT_FALSE(Logprobs(*policy).equal(base));
          EXPECT_TRUE(Logprobs(*policy, {.enabled = false}).equal(base));
        }
        const at::Tensor scores = policy->Run(Row(), {.with_gradient = true}).value().logprobs;
        scores.sum().backward();
        for (const NamedParameter& parameter : policy->parameters()) {
          EXPECT_GT(parameter.master.grad().abs().max().item<float>(), 0) << parameter.name;
        }
      }
    }
  }
}

TEST(AdaptersOptionsTest, RefusesWhatContradicts) {
  const auto make = [](const LoraOptions& lora, Numerics numerics, WeightScheme scheme) {
    const QuantisationPlan plan = MakeQuantisationPlan(ToyConfig(), {.weights = scheme}).value();
    return Policy::Create(ToyConfig(), ToyWeights(ToyConfig()), ComputeDType::kFp32, true, numerics,
                          Device::kCpu, {plan, lora})
        .status();
  };
  EXPECT_THAT(make({.rank = 4, .dropout = 0.1}, Numerics::kExact, WeightScheme::kWide),
              FailsWith(kInvalid, "leave nothing out"));
  EXPECT_THAT(make({.rank = 4}, Numerics::kFast, WeightScheme::kInt8),
              FailsWith(kInvalid, "servers quantise the merged weights"));
  EXPECT_THAT(make({.rank = 4, .targets = {"w_q"}}, Numerics::kFast, WeightScheme::kWide),
              FailsWith(kInvalid, "trainer.lora.targets: 'w_q' is none of the model's"));
}

}  // namespace
}  // namespace tandem::trainer
