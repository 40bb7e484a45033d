// Adapters in exact mode: the policy that trains them gives the bits of an engine that loaded the
// PEFT directory of the same adapters, which merges them into its weights.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/lora/peft_files.h"
#include "common/model/quantisation_plan.h"
#include "common/tensor/host_tensor_conversion.h"
#include "rollout_server/engine/engine.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "trainer/policy/policy.h"

namespace tandem {
namespace {

using testing::IsOk;
using trainer::NamedParameter;
using trainer::Policy;

struct LoraCase {
  std::string name;
  ComputeDType dtype = ComputeDType::kFp32;
  WeightScheme weights = WeightScheme::kWide;
  bool untied = false;
};

class ExactLoraTest : public ::testing::TestWithParam<LoraCase> {
 protected:
  void SetUp() override {
    config_ = testing::TinyModelConfig();
    config_.tie_word_embeddings = !GetParam().untied;
    if (GetParam().untied) lora_.targets = {"all-linear", "lm_head"};
    quantised_.weights = GetParam().weights;
    ASSERT_THAT(testing::WriteTinyModel(base_.path(), TANDEM_SOURCE_DIR, config_, 7), IsOk());
    policy_ = Policy::Create(config_, testing::TinyModelTensors(config_, 7), GetParam().dtype,
                             false, Numerics::kExact, Device::kCpu,
                             {MakeQuantisationPlan(config_, quantised_).value(), lora_})
                  .value();
    const at::NoGradGuard no_grad;
    at::manual_seed(3);
    for (const NamedParameter& parameter : policy_->parameters()) {
      parameter.master.copy_(at::randn(parameter.master.sizes()) * 0.1);
    }
    policy_->WeightsChanged();
    WriteAdapter();
  }

  // As a checkpoint has it: the adapter with copies of the base's config and tokenizer.
  void WriteAdapter() {
    std::vector<TensorSource> tensors;
    for (const NamedParameter& parameter : policy_->parameters()) {
      tensors.push_back(Present(ToHostTensor(parameter.name, parameter.master).value()));
    }
    ASSERT_THAT(WritePeftDirectory(
                    adapter_.path(),
                    PeftConfigText(base_.path(), lora_, policy_->adapters().modules()), tensors),
                IsOk());
    for (const auto& entry : std::filesystem::directory_iterator(base_.path())) {
      if (entry.path().extension() == ".safetensors") continue;
      std::filesystem::copy(entry.path(), adapter_.path() + "/" + entry.path().filename().string());
    }
  }

  LoraOptions lora_ = {.rank = 4, .alpha = 8};
  QuantisationOptions quantised_;
  ModelConfig config_;
  testing::TempDir base_, adapter_;
  std::unique_ptr<Policy> policy_;
};

TEST_P(ExactLoraTest, EveryLogProbIsTheEnginesBitForBit) {
  rollout::EngineOptions options;
  options.dtype = GetParam().dtype;
  options.num_threads = 2;
  options.quantised = quantised_;
  const auto created = rollout::Engine::Create(adapter_.path(), options);
  ASSERT_THAT(created, IsOk());
  rollout::GroupRequest request;
  for (int i = 0; i < 20; ++i) request.prompt.push_back(100 + i * 7919 % 40000);
  request.num_completions = 8;
  request.sampling.max_new_tokens = 40;
  request.sampling.ignore_eos = true;
  trainer::GroupTokens group = {.prompt = request.prompt};
  const std::vector<int32_t> prompt = request.prompt;
  group.prompt = prompt;
  ASSERT_THAT((*created)->Add(std::move(request)), IsOk());
  std::vector<rollout::FinishedCompletion> finished;
  while ((*created)->HasWork()) {
    auto events = (*created)->Step();
    ASSERT_THAT(events, IsOk());
    for (rollout::EngineEvent& event : *events) {
      auto* const one = std::get_if<rollout::CompletionFinished>(&event);
      if (one != nullptr) finished.push_back(std::move(one->completion));
    }
  }
  ASSERT_EQ(finished.size(), 8u);
  for (const auto& one : finished) group.completions.push_back(one.token_ids);
  const trainer::PackedRow row = trainer::PackRow({&group, 1}).value();
  const at::Tensor scores = policy_->Score(row, 1.0, false).value().logprobs;
  const at::Tensor of_base = policy_->Run(row, {.lora = {.enabled = false}}).value().logprobs;
  const float* const logprobs = scores.const_data_ptr<float>();
  for (size_t c = 0; c < finished.size(); ++c) {
    const trainer::Segment& segment = row.segments[row.completion_segments[c]];
    const std::vector<float>& behaviour = finished[c].behaviour_logprobs;
    for (size_t t = 0; t < behaviour.size(); ++t) {
      ASSERT_EQ(logprobs[static_cast<size_t>(segment.begin) + t], behaviour[t]) << c << " " << t;
    }
  }
  EXPECT_GT((scores - of_base).abs().max().item<float>(), 0.1f);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, ExactLoraTest,
    ::testing::Values(LoraCase{.name = "fp32"}, LoraCase{"bf16", ComputeDType::kBf16},
                      LoraCase{"bf16_untied", ComputeDType::kBf16, WeightScheme::kWide, true},
                      LoraCase{"int8", ComputeDType::kBf16, WeightScheme::kInt8},
                      LoraCase{"int4", ComputeDType::kBf16, WeightScheme::kInt4Group}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tandem
