#include "trainer/policy/policy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <tuple>

#include "common/model/quantisation_plan.h"
#include "tests/support/status_matchers.h"
#include "tests/trainer/test_devices.h"
#include "tests/trainer/toy_model.h"
#include "trainer/policy/weights/fake_quantised.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::SuccessorConfig;
using ::tandem::testing::SuccessorWeights;
using ::tandem::testing::ToyConfig;
using ::tandem::testing::ToyWeights;

const std::vector<int32_t> kPrompt = {3, 9, 4, 1}, kLong = {5, 6, 2, 7, 8, 2}, kShort = {11, 2};

ModelConfig Variant(int number) {
  ModelConfig config = ToyConfig();
  if (number == 1) config.attention_qkv_bias = true;   // Qwen2
  if (number == 2) config.qk_norm = QkNorm::kPerHead;  // Qwen3
  if (number == 3) {                                   // Llama with everything
    config.tie_word_embeddings = false;
    config.attention_qkv_bias = config.attention_o_bias = config.mlp_bias = true;
    config.rope.type = RopeType::kLlama3;
    config.rope.factor = 8;
    config.rope.high_freq_factor = 4;
    config.rope.original_max_position_embeddings = 32;
  }
  return config;
}

std::unique_ptr<Policy> MakePolicy(const ModelConfig& config,
                                   ComputeDType dtype = ComputeDType::kFp32,
                                   Device device = Device::kCpu) {
  return Policy::Create(config, ToyWeights(config), dtype, /*trainable=*/true, Numerics::kFast,
                        device)
      .value();
}

PackedRow OneGroup(const std::vector<std::vector<int32_t>>& completions) {
  GroupTokens group{.prompt = kPrompt};
  for (const auto& c : completions) group.completions.push_back(c);
  return PackRow({&group, 1}).value();
}

at::Tensor Targets(const Policy&, const TokenScores& scores, const PackedRow& row) {
  std::vector<int64_t> places;
  for (int64_t t = 0; t < row.num_tokens(); ++t) {
    if (row.is_target[t]) places.push_back(t);
  }
  return scores.logprobs.index_select(0, at::tensor(places, at::kLong));
}

class PolicyVariantTest : public ::testing::TestWithParam<std::tuple<Device, int>> {
 protected:
  Device device() const { return std::get<0>(GetParam()); }
  ModelConfig config() const { return Variant(std::get<1>(GetParam())); }
  std::unique_ptr<Policy> Make() const {
    return MakePolicy(config(), ComputeDType::kFp32, device());
  }
};

TEST_P(PolicyVariantTest, APromptSharedByItsCompletionsScoresLikeSeparateRows) {
  const auto policy = Make();
  const PackedRow together = OneGroup({kLong, kShort});
  const at::Tensor shared = Targets(*policy, *policy->Score(together, 1.0, true), together);
  std::vector<at::Tensor> apart;
  for (const auto& completion : {kLong, kShort}) {
    const PackedRow row = OneGroup({completion});
    apart.push_back(Targets(*policy, *policy->Score(row, 1.0, false), row));
  }
  EXPECT_LT((shared - at::cat(apart)).abs().max().item<float>(), 2e-6f);
}

TEST_P(PolicyVariantTest, GradientsOfAPackedRowAreThoseOfSeparateRows) {
  const auto packed = Make(), separate = Make();
  packed->Score(OneGroup({kLong, kShort}), 1.0, true)->logprobs.sum().backward();
  for (const auto& completion : {kLong, kShort}) {
    separate->Score(OneGroup({completion}), 1.0, true)->logprobs.sum().backward();
  }
  for (size_t i = 0; i < packed->parameters().size(); ++i) {
    const at::Tensor a = packed->parameters()[i].master.grad();
    const at::Tensor b = separate->parameters()[i].master.grad();
    EXPECT_LT((a - b).abs().max().item<float>(), 2e-5f) << packed->parameters()[i].name;
  }
}

// Two rows: the gradients of the second add to those of the first. Head, then layers from the last.
TEST_P(PolicyVariantTest, TellsOfEachGradientOnceAndWhenNothingMoreIsAddedToIt) {
  const auto policy = Make();
  const std::vector<NamedParameter>& parameters = policy->parameters();
  policy->Score(OneGroup({kLong}), 1.0, true)->logprobs.sum().backward();
  std::vector<at::Tensor> told(parameters.size());
  std::vector<std::string> order;
  const auto& stages = policy->stages();
  const auto is_last = [&](size_t i, size_t stage) {
    return std::none_of(stages.begin() + static_cast<int64_t>(stage) + 1, stages.end(),
                        [&](const auto& later) { return std::ranges::count(later, i) > 0; });
  };
  policy->Watch({.end = [&](Pass pass, size_t stage) {
    if (pass == Pass::kForward) return;
    for (const size_t i : stages[stage]) {
      if (!is_last(i, stage)) continue;
      EXPECT_FALSE(told[i].defined()) << parameters[i].name;
      told[i] = parameters[i].master.grad().clone();
      order.push_back(parameters[i].name);
    }
  }});
  policy->Score(OneGroup({kShort}), 1.0, true)->logprobs.sum().backward();
  ASSERT_EQ(order.size(), parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(told[i].equal(parameters[i].master.grad())) << parameters[i].name;
  }
  const auto place = [&](const char* name) {
    return std::ranges::find(order, name) - order.begin();
  };
  EXPECT_LT(place("model.norm.weight"), place("model.layers.1.mlp.down_proj.weight"));
  EXPECT_LT(place("model.layers.1.mlp.down_proj.weight"),
            place("model.layers.0.input_layernorm.weight"));
  EXPECT_EQ(order.back(), "model.embed_tokens.weight");
}

TEST_P(PolicyVariantTest, CheckpointedActivationsGiveTheSameGradientsBitForBit) {
  const auto kept = Make(), again = Make();
  again->CheckpointActivations(true);
  for (const auto& policy : {kept.get(), again.get()}) {
    policy->Score(OneGroup({kLong, kShort}), 0.9, true)->logprobs.sum().backward();
  }
  for (size_t i = 0; i < kept->parameters().size(); ++i) {
    EXPECT_TRUE(kept->parameters()[i].master.grad().equal(again->parameters()[i].master.grad()))
        << kept->parameters()[i].name;
  }
}

// Straight through: scores and gradients are those of a policy whose weights are the stored values.
TEST(PolicyFakeQuantiseTest, GivesTheScoresAndGradientsOfTheStoredWeights) {
  for (const ComputeDType dtype : {ComputeDType::kFp32, ComputeDType::kBf16}) {
    for (const WeightScheme scheme : {WeightScheme::kInt8, WeightScheme::kFp8E4m3}) {
      const ModelConfig config = Variant(1);
      const auto plan = MakeQuantisationPlan(config, {.weights = scheme});
      ASSERT_THAT(plan, IsOk());
      const auto faked = Policy::Create(config, ToyWeights(config), dtype, true, Numerics::kFast,
                                        Device::kCpu, {*plan})
                             .value();
      const auto plain = MakePolicy(config), stored = MakePolicy(config, dtype);
      for (const NamedParameter& parameter : stored->parameters()) {
        const at::NoGradGuard no_grad;
        if (parameter.master.dim() != 2) continue;
        const bool bf16 = dtype == ComputeDType::kBf16;
        const at::Tensor pushed =
            bf16 ? parameter.master.detach().to(at::kBFloat16) : parameter.master.detach();
        parameter.master.copy_(FakeQuantised(pushed, {scheme}));
      }
      stored->WeightsChanged();
      const PackedRow row = OneGroup({kLong, kShort});
      const at::Tensor scores = faked->Score(row, 1.0, true)->logprobs;
      const at::Tensor want = stored->Score(row, 1.0, true)->logprobs;
      EXPECT_TRUE(scores.equal(want));
      EXPECT_FALSE(scores.equal(plain->Score(row, 1.0, false)->logprobs));
      scores.sum().backward();
      want.sum().backward();
      for (size_t i = 0; i < faked->parameters().size(); ++i) {
        EXPECT_TRUE(
            faked->parameters()[i].master.grad().equal(stored->parameters()[i].master.grad()))
            << faked->parameters()[i].name;
      }
    }
  }
}

// The gradients in the masters are those of `value`, which is computed anew for changed masters.
void ExpectGradientsOf(Policy& policy, const std::function<double()>& value) {
  for (const NamedParameter& parameter : policy.parameters()) {
    const at::Tensor master = parameter.master.detach(), saved = master.clone();
    at::manual_seed(17);
    const at::Tensor direction = at::randn(saved.sizes()).to(saved.device());
    const auto at_step = [&](double step) {
      master.copy_(saved + step * direction);
      return value();
    };
    // Five points: the second derivative of a whole model is too large for two. With a smaller step
    // the rounding of fp32 shows on a device.
    constexpr double kStep = 2e-3;
    const double expected =
        (8 * (at_step(kStep) - at_step(-kStep)) - (at_step(2 * kStep) - at_step(-2 * kStep))) /
        (12 * kStep);
    master.copy_(saved);
    const double got = (parameter.master.grad() * direction).sum().item<double>();
    EXPECT_NEAR(got, expected, 1e-2 * std::max(1.0, std::abs(expected))) << parameter.name;
  }
}

TEST_P(PolicyVariantTest, EveryGradientAgreesWithDifferences) {
  const auto policy = Make();
  const PackedRow row = OneGroup({kLong, kShort});
  policy->Score(row, 0.9, true)->logprobs.sum().backward();
  ExpectGradientsOf(*policy, [&] {
    return policy->Score(row, 0.9, false)->logprobs.to(at::kDouble).sum().item<double>();
  });
}

// All that a pass can give, differentiated at once: log-probs, entropies and hidden states, one of
// them read twice.
TEST_P(PolicyVariantTest, GradientsOfEntropiesAndHiddenStatesAgreeWithDifferences) {
  const auto policy = Make();
  const PackedRow row = OneGroup({kShort});
  PassOptions options = {.temperature = 0.9, .hidden_at = {3, 3, row.num_tokens() - 1}};
  at::manual_seed(23);
  const at::Tensor weights = at::randn({3, config().hidden_size});
  const auto total = [&] {
    const TokenScores scores = policy->Run(row, options).value();
    const at::Tensor hidden = scores.hidden * weights.to(scores.hidden.device());
    return scores.logprobs.sum().to(at::kDouble) + 0.5 * scores.entropies.sum().to(at::kDouble) +
           hidden.sum().to(at::kCPU, at::kDouble);
  };
  options.with_gradient = options.entropy_gradient = true;
  total().backward();
  options.with_gradient = options.entropy_gradient = false;
  ExpectGradientsOf(*policy, [&] { return total().item<double>(); });
}

TEST_P(PolicyVariantTest, WithoutLogprobsItIsATrunkWhoseHeadGetsNoGradient) {
  const auto policy = Make();
  const PackedRow row = OneGroup({kLong});
  const TokenScores scores =
      policy->Run(row, {.with_gradient = true, .logprobs = false, .hidden_at = {4, 5}}).value();
  EXPECT_FALSE(scores.logprobs.defined());
  ASSERT_EQ(scores.hidden.sizes().vec(), (std::vector<int64_t>{2, config().hidden_size}));
  scores.hidden.sum().backward();
  for (const NamedParameter& parameter : policy->parameters()) {
    if (parameter.name != "lm_head.weight") continue;
    EXPECT_EQ(parameter.master.grad().abs().max().item<float>(), 0);
  }
}

TEST_P(PolicyVariantTest, LogprobsAndGradientsAreTheCpus) {
  const auto here = Make(), on_cpu = MakePolicy(config());
  const PackedRow row = OneGroup({kLong, kShort});
  const TokenScores got = here->Score(row, 0.9, true).value();
  const TokenScores expected = on_cpu->Score(row, 0.9, true).value();
  EXPECT_TRUE(got.logprobs.is_cpu() && got.entropies.is_cpu());
  EXPECT_LT((got.logprobs - expected.logprobs).abs().max().item<float>(), 1e-5f);
  EXPECT_LT((got.entropies - expected.entropies).abs().max().item<float>(), 1e-5f);
  got.logprobs.sum().backward();
  expected.logprobs.sum().backward();
  for (size_t i = 0; i < here->parameters().size(); ++i) {
    const at::Tensor a = here->parameters()[i].master.grad().cpu();
    const at::Tensor b = on_cpu->parameters()[i].master.grad();
    EXPECT_LT((a - b).abs().max().item<float>(), 5e-5f) << here->parameters()[i].name;
  }
}

// In bfloat16 the two round at different places: activations on a device, products on the CPU.
// Gradients are as near to those of fp32 as the CPU's are, to a factor.
TEST_P(PolicyVariantTest, Bf16GradientsAreAsNearToFp32AsTheCpus) {
  ModelConfig wide = config();
  wide.head_dim = 8;  // what flash attention takes
  const PackedRow row = OneGroup({kLong, kShort});
  const auto gradients = [&](ComputeDType dtype, Device where) {
    const auto policy = MakePolicy(wide, dtype, where);
    policy->Score(row, 0.9, true)->logprobs.sum().backward();
    std::vector<at::Tensor> flat;
    for (const NamedParameter& p : policy->parameters()) {
      flat.push_back(p.master.grad().cpu().flatten());
    }
    return at::cat(flat);
  };
  const at::Tensor exact = gradients(ComputeDType::kFp32, Device::kCpu);
  const auto error = [&](const at::Tensor& of) {
    return ((of - exact).norm() / exact.norm()).item<double>();
  };
  const double on_cpu = error(gradients(ComputeDType::kBf16, Device::kCpu));
  const double here = error(gradients(ComputeDType::kBf16, device()));
  EXPECT_GT(here, 1e-4);
  EXPECT_LT(here, 3 * on_cpu);
}

INSTANTIATE_TEST_SUITE_P(LlamaQwen2Qwen3Biases, PolicyVariantTest,
                         ::testing::Combine(::testing::ValuesIn(testing::TestDevices()),
                                            ::testing::Values(0, 1, 2, 3)));

TEST(PolicyTest, Bug09LogprobsAreOfTheTokenItselfAndNotOfItsNeighbour) {
  const ModelConfig config = SuccessorConfig();
  auto policy = Policy::Create(config, SuccessorWeights(config), ComputeDType::kFp32, true).value();
  // Hidden states have norm 4 in their one direction: the right logit is 20, the others 0.
  const double sure = -std::log1p(15 * std::exp(-20.0));
  const auto up = policy->Score(SingleSequenceRow(std::vector<int32_t>{4, 5, 6}), 1.0, false);
  EXPECT_NEAR(up->logprobs[1].item<double>(), sure, 1e-6);
  EXPECT_NEAR(up->logprobs[2].item<double>(), sure, 1e-6);
  const auto same = policy->Score(SingleSequenceRow(std::vector<int32_t>{4, 4}), 1.0, false);
  EXPECT_NEAR(same->logprobs[1].item<double>(), -20, 1e-3);
}

TEST(PolicyTest, Bug30LogprobsAreOfTheTemperedDistribution) {
  const ModelConfig config = SuccessorConfig();
  auto policy = Policy::Create(config, SuccessorWeights(config), ComputeDType::kFp32, true).value();
  // At temperature 4 the right logit is 5: p = e^5 / (e^5 + 15).
  const auto scores = policy->Score(SingleSequenceRow(std::vector<int32_t>{4, 5}), 4.0, false);
  const double p = std::exp(5.0) / (std::exp(5.0) + 15);
  EXPECT_NEAR(scores->logprobs[1].item<double>(), std::log(p), 1e-5);
}

TEST(PolicyTest, Bug31TwoPassesOverTheSameTokensAreBitwiseEqual) {
  const auto policy = MakePolicy(Variant(0));
  const PackedRow row = OneGroup({kLong, kShort});
  const auto first = policy->Score(row, 1.0, true), second = policy->Score(row, 1.0, false);
  EXPECT_TRUE(first->logprobs.detach().equal(second->logprobs));
  EXPECT_TRUE(first->entropies.equal(second->entropies));
}

TEST(PolicyTest, Bug12AnEndTokenInTheMiddleIsATokenLikeOthers) {
  // Token 2 is the end token of kLong and stands in its middle too: both are scored, and what
  // follows the first sees it.
  const auto policy = MakePolicy(Variant(0));
  const auto with = policy->Score(OneGroup({kLong}), 1.0, false);
  std::vector<int32_t> changed = kLong;
  changed[2] = 3;
  const auto without = policy->Score(OneGroup({changed}), 1.0, false);
  EXPECT_LT(with->logprobs[6].item<float>(), 0);
  EXPECT_LT(with->logprobs[9].item<float>(), 0);
  EXPECT_GT((with->logprobs[7] - without->logprobs[7]).abs().item<float>(), 1e-3f);
}

TEST(PolicyTest, CompletionsDoNotSeeEachOther) {
  const auto policy = MakePolicy(Variant(0));
  const auto one = policy->Score(OneGroup({kLong, kShort}), 1.0, false);
  const auto other = policy->Score(OneGroup({{5, 6, 2, 7, 8, 30}, kShort}), 1.0, false);
  EXPECT_TRUE(one->logprobs.slice(0, 10).equal(other->logprobs.slice(0, 10)));
}

TEST(PolicyTest, Bf16StaysNearFp32AndNoticesChangedWeights) {
  const auto fp32 = MakePolicy(Variant(0)), bf16 = MakePolicy(Variant(0), ComputeDType::kBf16);
  const PackedRow row = OneGroup({kLong, kShort});
  const at::Tensor difference =
      (fp32->Score(row, 1.0, false)->logprobs - bf16->Score(row, 1.0, false)->logprobs).abs();
  EXPECT_GT(difference.max().item<float>(), 1e-5f);
  EXPECT_LT(difference.max().item<float>(), 0.2f);
  const at::Tensor before = bf16->Score(row, 1.0, false)->logprobs;
  for (const NamedParameter& p : bf16->parameters()) p.master.detach().mul_(1.5);
  bf16->WeightsChanged();
  EXPECT_GT((bf16->Score(row, 1.0, false)->logprobs - before).abs().max().item<float>(), 1e-2f);
}

TEST(PolicyTest, RefusesAnIdOutsideTheVocabularyAndATargetWithNothingBefore) {
  const auto policy = MakePolicy(Variant(0));
  EXPECT_THAT(policy->Score(SingleSequenceRow(std::vector<int32_t>{1, 99}), 1.0, false),
              FailsWith(absl::StatusCode::kInvalidArgument, "id 99; the model has 32 tokens"));
  PackedRow row = SingleSequenceRow(std::vector<int32_t>{1, 2});
  row.is_target[0] = true;
  EXPECT_THAT(policy->Score(row, 1.0, false),
              FailsWith(absl::StatusCode::kInvalidArgument, "nothing comes before it"));
}

TEST(PolicyTest, ARowWithoutTargetsScoresNothing) {
  const auto policy = MakePolicy(Variant(0));
  const auto scores = policy->Score(SingleSequenceRow(std::vector<int32_t>{1}), 1.0, false);
  ASSERT_THAT(scores, IsOk());
  EXPECT_EQ(scores->logprobs.item<float>(), 0);
}

TEST(PolicyTest, RefusesHeadsThatFlashAttentionDoesNotTake) {
  EXPECT_THAT(Policy::CreateUnfilled(ToyConfig(), ComputeDType::kBf16, true, Numerics::kFast,
                                     Device::kCuda),
              FailsWith(absl::StatusCode::kUnimplemented, "heads of 6 elements"));
}

TEST(PolicyTest, NamesTheTensorThatIsMissing) {
  const ModelConfig config = ToyConfig();
  std::vector<HostTensor> tensors = ToyWeights(config);
  tensors.pop_back();
  EXPECT_THAT(Policy::Create(config, tensors, ComputeDType::kFp32, true),
              FailsWith(absl::StatusCode::kInvalidArgument, "must be model.norm.weight"));
}

}  // namespace
}  // namespace tandem::trainer
