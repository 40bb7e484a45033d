// Exact mode on a device: the forward pass of the policy gives the bits of the engine. Without a
// GPU, both run on the CPU with emulated kernels, so the vocabulary is small.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/tensor/nearest_cast.h"
#include "rollout_server/engine/engine.h"
#include "tests/parity/model_shapes.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "trainer/policy/policy.h"

namespace tandem {
namespace {

using trainer::Policy;

constexpr int32_t kVocabulary = 600;

struct DeviceCase {
  std::string name;
  bool bf16 = false;
  float temperature = 1, top_p = 1;
  void (*shape)(ModelConfig&) = nullptr;
};

class ExactDeviceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  struct Drawn {
    std::vector<int32_t> prompt;
    std::vector<rollout::FinishedCompletion> completions;
  };

  void SetUp() override {
    config_ = testing::TinyModelConfig();
    config_.vocab_size = kVocabulary;
    config_.eos_token_ids = {0};
    if (GetParam().shape != nullptr) GetParam().shape(config_);
    ASSERT_THAT(testing::WriteTinyModel(directory_.path(), TANDEM_SOURCE_DIR, config_, 7),
                testing::IsOk());
  }

  // Prompts of 5, 19 and 33 tokens: within a block of KV, over one, over two.
  std::vector<Drawn> Generate() const {
    rollout::EngineOptions options;
    options.device = Device::kCuda;
    options.numerics = Numerics::kExact;
    options.dtype = GetParam().bf16 ? ComputeDType::kBf16 : ComputeDType::kFp32;
    options.kv_capacity_tokens = 2048;
    options.max_batch_sequences = 16;
    options.max_step_tokens = 24;  // prompts come in chunks, beside decodes
    const auto engine = rollout::Engine::Create(directory_.path(), options).value();
    std::vector<Drawn> drawn(3);
    for (int32_t g = 0; g < 3; ++g) {
      rollout::GroupRequest request;
      request.key = g;
      for (int32_t i = 0; i < 5 + 14 * g; ++i) {
        request.prompt.push_back(1 + (g * 97 + i * 31) % (kVocabulary - 1));
      }
      request.num_completions = 3;
      request.sampling.temperature = GetParam().temperature;
      request.sampling.top_p = GetParam().top_p;
      request.sampling.return_support = GetParam().top_p < 1;
      request.sampling.max_new_tokens = 7;
      request.sampling.ignore_eos = true;
      request.sampling.seed = static_cast<uint64_t>(g);
      drawn[g] = {request.prompt, std::vector<rollout::FinishedCompletion>(3)};
      EXPECT_THAT(engine->Add(std::move(request)), testing::IsOk());
    }
    while (engine->HasWork()) {
      auto events = engine->Step();
      EXPECT_THAT(events, testing::IsOk());
      for (rollout::EngineEvent& event : *events) {
        auto* finished = std::get_if<rollout::CompletionFinished>(&event);
        if (finished == nullptr) continue;
        auto& completion = finished->completion;
        drawn[finished->key].completions[completion.index] = std::move(completion);
      }
    }
    return drawn;
  }

  // The masters are bf16 numbers, which a cast does not change.
  std::unique_ptr<Policy> MakePolicy(Numerics numerics, bool trainable = false,
                                     bool in_bf16 = true) const {
    std::vector<HostTensor> tensors = testing::TinyModelTensors(config_, 7);
    for (HostTensor& tensor : tensors) {
      if (!GetParam().bf16) break;
      tensor = CastNearest(CastNearest(tensor, DType::kBF16).value(), DType::kF32).value();
    }
    return Policy::Create(config_, tensors,
                          GetParam().bf16 && in_bf16 ? ComputeDType::kBf16 : ComputeDType::kFp32,
                          trainable, numerics, Device::kCuda)
        .value();
  }

  static trainer::PackedRow Pack(std::span<const Drawn> groups) {
    std::vector<trainer::GroupTokens> tokens;
    for (const Drawn& group : groups) {
      trainer::GroupTokens& of_group = tokens.emplace_back();
      of_group.prompt = group.prompt;
      for (const rollout::FinishedCompletion& completion : group.completions) {
        of_group.completions.push_back(completion.token_ids);
        if (!completion.support.empty()) {
          of_group.support.emplace_back(completion.support.begin(), completion.support.end());
        }
      }
    }
    return trainer::PackRow(tokens).value();
  }

  // How many log-probs and entropies differ from the engine's, over the groups in one row.
  int NumDifferent(Policy& policy, std::span<const Drawn> groups) const {
    const trainer::PackedRow row = Pack(groups);
    const auto scores = policy.Score(row, GetParam().temperature, false).value();
    int different = 0;
    size_t completion = 0;
    for (const Drawn& group : groups) {
      for (const rollout::FinishedCompletion& drawn : group.completions) {
        const int64_t begin = row.segments[row.completion_segments[completion++]].begin;
        for (size_t t = 0; t < drawn.token_ids.size(); ++t) {
          const auto at = begin + static_cast<int64_t>(t);
          different += scores.logprobs[at].item<float>() != drawn.behaviour_logprobs[t];
          different += scores.entropies[at].item<float>() != drawn.entropies[t];
        }
      }
    }
    return different;
  }

  testing::TempDir directory_;
  ModelConfig config_;
};

TEST_P(ExactDeviceTest, EveryLogProbAndEntropyIsTheEnginesBitForBitHoweverRowsArePacked) {
  const std::vector<Drawn> groups = Generate();
  ASSERT_EQ(groups[2].completions[2].token_ids.size(), 7u);
  const auto policy = MakePolicy(Numerics::kExact);
  EXPECT_EQ(NumDifferent(*policy, groups), 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    EXPECT_EQ(NumDifferent(*policy, std::span(groups).subspan(g, 1)), 0) << g;
  }
  const Drawn alone = {groups[1].prompt, {groups[1].completions[2]}};
  EXPECT_EQ(NumDifferent(*policy, std::span(&alone, 1)), 0);
  // Without exact mode they differ.
  EXPECT_GT(NumDifferent(*MakePolicy(Numerics::kFast), groups), 0);
}

// In bf16, the exact gradient may differ from that of fp32 at the same weights by little more than
// the ordinary bf16 gradient does.
TEST_P(ExactDeviceTest, GradientsAreTheOrdinaryOnesToRounding) {
  const std::vector<Drawn> groups = Generate();  // the row refers to them
  const trainer::PackedRow row = Pack(groups);
  const auto gradient = [&](Numerics numerics, bool in_bf16) {
    const auto policy = MakePolicy(numerics, /*trainable=*/true, in_bf16);
    policy->Score(row, GetParam().temperature, true)->logprobs.sum().backward();
    std::vector<at::Tensor> flat;
    for (const trainer::NamedParameter& parameter : policy->parameters()) {
      flat.push_back(parameter.master.grad().cpu().to(at::kDouble).flatten());
    }
    return at::cat(flat);
  };
  const bool bf16 = GetParam().bf16;
  const at::Tensor in_fp32 = gradient(Numerics::kFast, false);
  const auto error = [&](Numerics numerics) {
    return ((gradient(numerics, bf16) - in_fp32).norm() / in_fp32.norm()).item<double>();
  };
  EXPECT_LT(error(Numerics::kExact), 2 * error(Numerics::kFast) + 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Models, ExactDeviceTest,
    ::testing::Values(DeviceCase{"llama_fp32"}, DeviceCase{"llama_bf16_tempered", true, 0.7f},
                      DeviceCase{"llama_bf16_filtered", true, 0.9f, 0.8f},
                      DeviceCase{"qwen2_bf16", true, 1, 1, testing::Qwen2Like},
                      DeviceCase{"qwen3_fp32_filtered", false, 1, 0.8f, testing::Qwen3Like},
                      DeviceCase{"qwen3_bf16", true, 1, 1, testing::Qwen3Like}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace tandem
