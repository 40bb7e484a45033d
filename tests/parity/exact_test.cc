// Exact mode: the forward pass of the policy gives the engine's bits for the tokens that the engine
// sampled, for any packing, and its gradients are the ordinary ones.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/tensor/nearest_cast.h"
#include "rollout_server/engine/engine.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "trainer/policy/policy.h"

namespace tandem {
namespace {

using trainer::Policy;

struct ExactCase {
  std::string name;
  bool bf16 = false;
  float temperature = 1;
  float top_p = 1;
  void (*shape)(ModelConfig&) = nullptr;
};

// Grouped queries, query and key norms, and sizes that are not a multiple of a vector.
void Qwen3Like(ModelConfig& config) {
  config.model_type = "qwen3";
  config.qk_norm = QkNorm::kPerHead;
  config.hidden_size = 40;
  config.intermediate_size = 72;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 12;
}

// Biases of queries, keys and values, and a separate head.
void Qwen2Like(ModelConfig& config) {
  config.model_type = "qwen2";
  config.attention_qkv_bias = true;
  config.tie_word_embeddings = false;
}

// Most of the time goes to the vocabulary, so many tokens are compared in a small one, whose size is not
// a multiple of a vector either, and fewer in a whole one.
constexpr int64_t kSmallVocabulary = 5003, kWholeVocabulary = 49152;

class ExactTest : public ::testing::TestWithParam<ExactCase> {
 protected:
  explicit ExactTest(int64_t vocabulary = kSmallVocabulary) { config_.vocab_size = vocabulary; }

  struct Drawn {
    std::vector<int32_t> prompt;
    std::vector<std::vector<int32_t>> completions;
    std::vector<std::vector<float>> logprobs;
    std::vector<std::vector<PackedSupport>> support;
  };

  void SetUp() override {
    if (GetParam().shape != nullptr) GetParam().shape(config_);
    ASSERT_THAT(testing::WriteTinyModel(directory_.path(), TANDEM_SOURCE_DIR, config_, 7),
                testing::IsOk());
  }

  // `groups` groups of 8 completions of up to `max_new_tokens` tokens, prompts of 1 to 40 tokens.
  std::vector<Drawn> Generate(int groups, int32_t max_new_tokens) const {
    rollout::EngineOptions options;
    options.dtype = GetParam().bf16 ? ComputeDType::kBf16 : ComputeDType::kFp32;
    options.num_threads = 2;
    options.max_step_tokens = 70;  // prompts come in chunks, beside decodes
    const auto engine = rollout::Engine::Create(directory_.path(), options).value();
    std::vector<Drawn> drawn(groups);
    for (int g = 0; g < groups; ++g) {
      rollout::GroupRequest request;
      request.key = g;
      for (int i = 0; i <= g * 7 % 40; ++i)
        request.prompt.push_back(
            static_cast<int32_t>(100 + (g * 977 + i * 7919) % (config_.vocab_size - 200)));
      request.num_completions = 8;
      request.sampling.temperature = GetParam().temperature;
      request.sampling.top_p = GetParam().top_p;
      request.sampling.return_support = true;
      request.sampling.max_new_tokens = max_new_tokens - g % 5;
      request.sampling.ignore_eos = true;
      request.sampling.seed = static_cast<uint64_t>(g);
      drawn[g].prompt = request.prompt;
      drawn[g].completions.resize(8);
      drawn[g].logprobs.resize(8);
      drawn[g].support.resize(8);
      EXPECT_THAT(engine->Add(std::move(request)), testing::IsOk());
    }
    while (engine->HasWork()) {
      auto events = engine->Step();
      EXPECT_THAT(events, testing::IsOk());
      for (rollout::EngineEvent& event : *events) {
        auto* finished = std::get_if<rollout::CompletionFinished>(&event);
        if (finished == nullptr) continue;
        rollout::FinishedCompletion& c = finished->completion;
        drawn[finished->key].completions[c.index] = c.token_ids;
        drawn[finished->key].logprobs[c.index] = c.behaviour_logprobs;
        if (GetParam().top_p < 1) drawn[finished->key].support[c.index] = c.support;
      }
    }
    return drawn;
  }

  // With `cast`, the masters are bf16 numbers, which a cast does not change.
  std::unique_ptr<Policy> MakePolicy(Numerics numerics, bool trainable = false, bool cast = false,
                                     bool in_bf16 = true) const {
    std::vector<HostTensor> tensors = testing::TinyModelTensors(config_, 7);
    for (HostTensor& tensor : tensors) {
      if (cast)
        tensor = CastNearest(CastNearest(tensor, DType::kBF16).value(), DType::kF32).value();
    }
    return Policy::Create(config_, tensors,
                          GetParam().bf16 && in_bf16 ? ComputeDType::kBf16 : ComputeDType::kFp32,
                          trainable, numerics)
        .value();
  }

  static trainer::GroupTokens Tokens(const Drawn& group) {
    trainer::GroupTokens tokens{.prompt = group.prompt, .completions = {}};
    for (const auto& completion : group.completions) tokens.completions.push_back(completion);
    for (const auto& support : group.support) {
      tokens.support.emplace_back(support.begin(), support.end());
    }
    return tokens;
  }

  // Largest |proximal - behaviour| over the groups packed into one row, and how many tokens that
  // are.
  double LargestDelta(Policy& policy, std::span<const Drawn> groups, int64_t* num_tokens) const {
    std::vector<trainer::GroupTokens> tokens;
    for (const Drawn& group : groups) tokens.push_back(Tokens(group));
    const trainer::PackedRow row = trainer::PackRow(tokens).value();
    const trainer::TokenScores scores =
        policy.Score(row, GetParam().temperature, /*with_gradient=*/false).value();
    const float* logprobs = scores.logprobs.const_data_ptr<float>();
    double largest = 0;
    size_t completion = 0;
    for (const Drawn& group : groups) {
      for (const std::vector<float>& behaviour : group.logprobs) {
        const trainer::Segment& segment = row.segments[row.completion_segments[completion++]];
        for (size_t t = 0; t < behaviour.size(); ++t) {
          largest = std::fmax(largest, std::fabs(logprobs[segment.begin + t] - behaviour[t]));
        }
        *num_tokens += static_cast<int64_t>(behaviour.size());
      }
    }
    return largest;
  }

  testing::TempDir directory_;
  ModelConfig config_ = testing::TinyModelConfig();
};

class ExactWholeVocabularyTest : public ExactTest {
 protected:
  ExactWholeVocabularyTest() : ExactTest(kWholeVocabulary) {}
};

TEST_P(ExactTest, EveryLogProbIsTheEnginesBitForBitHoweverRowsArePacked) {
  const std::vector<Drawn> groups = Generate(60, 48);
  const auto policy = MakePolicy(Numerics::kExact);
  int64_t num_tokens = 0;
  for (size_t i = 0; i < groups.size(); i += 6) {  // six groups a row
    ASSERT_EQ(LargestDelta(*policy, std::span(groups).subspan(i, 6), &num_tokens), 0.0) << i;
  }
  EXPECT_GE(num_tokens, 20'000);
  for (size_t i = 0; i < 5; ++i) {  // a group a row
    ASSERT_EQ(LargestDelta(*policy, std::span(groups).subspan(i, 1), &num_tokens), 0.0) << i;
  }
  for (size_t c = 0; c < 8; ++c) {  // a completion a row
    const Drawn one = {groups[3].prompt,
                       {groups[3].completions[c]},
                       {groups[3].logprobs[c]},
                       {groups[3].support[c]}};
    ASSERT_EQ(LargestDelta(*policy, std::span(&one, 1), &num_tokens), 0.0) << c;
  }
  // Without exact mode they differ.
  int64_t ignored = 0;
  EXPECT_GT(LargestDelta(*MakePolicy(Numerics::kFast), std::span(groups).first(6), &ignored), 0.0);
}

TEST_P(ExactWholeVocabularyTest, EveryLogProbIsTheEnginesBitForBit) {
  const std::vector<Drawn> groups = Generate(3, 32);
  int64_t num_tokens = 0;
  ASSERT_EQ(LargestDelta(*MakePolicy(Numerics::kExact), groups, &num_tokens), 0.0);
  EXPECT_GE(num_tokens, 700);
}

// In fp32, gradients are equal up to rounding. In bf16, the exact gradient may differ from that of
// fp32 at the same (cast) weights by little more than the ordinary bf16 gradient does.
TEST_P(ExactWholeVocabularyTest, GradientsAreTheOrdinaryOnesToRounding) {
  const std::vector<Drawn> groups = Generate(2, 20);
  const trainer::PackedRow row =
      trainer::PackRow(std::vector<trainer::GroupTokens>{Tokens(groups[0]), Tokens(groups[1])})
          .value();
  const bool bf16 = GetParam().bf16;
  const auto gradients = [&](Numerics numerics, bool in_bf16) {
    const auto policy = MakePolicy(numerics, true, /*cast=*/bf16, in_bf16);
    const trainer::TokenScores scores =
        policy->Score(row, GetParam().temperature, /*with_gradient=*/true).value();
    scores.logprobs.sum().backward();
    std::vector<std::pair<std::string, at::Tensor>> grads;
    for (const trainer::NamedParameter& parameter : policy->parameters()) {
      grads.emplace_back(parameter.name, parameter.master.grad().to(at::kDouble));
    }
    return grads;
  };
  const auto exact = gradients(Numerics::kExact, bf16), ordinary = gradients(Numerics::kFast, bf16);
  const auto in_fp32 = gradients(Numerics::kFast, false);
  double of_exact = 0, of_ordinary = 0, of_all = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const auto distance = [&](const at::Tensor& gradient) {
      return (gradient - in_fp32[i].second).norm().item<double>();
    };
    const double size = in_fp32[i].second.norm().item<double>();
    ASSERT_GT(size, 0) << exact[i].first;
    // Exact mode also rounds keys and values, which is most of what changes the gradient of a key
    // bias.
    EXPECT_LE(distance(exact[i].second), 4 * distance(ordinary[i].second) + 1e-5 * size)
        << exact[i].first;
    of_exact += std::pow(distance(exact[i].second), 2);
    of_ordinary += std::pow(distance(ordinary[i].second), 2);
    of_all += size * size;
  }
  EXPECT_LE(std::sqrt(of_exact), 2 * std::sqrt(of_ordinary) + 1e-5 * std::sqrt(of_all));
}

const auto kCases = ::testing::Values(ExactCase{"llama_fp32"}, ExactCase{"llama_bf16", true},
                                      ExactCase{"llama_bf16_tempered", true, 0.7f},
                                      ExactCase{"llama_fp32_filtered", false, 0.9f, 0.8f},
                                      ExactCase{"qwen2_bf16", true, 1, 1, Qwen2Like},
                                      ExactCase{"qwen3_fp32", false, 1, 1, Qwen3Like},
                                      ExactCase{"qwen3_bf16", true, 1, 1, Qwen3Like});
std::string NameOf(const ::testing::TestParamInfo<ExactCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Models, ExactTest, kCases, NameOf);
INSTANTIATE_TEST_SUITE_P(Models, ExactWholeVocabularyTest, kCases, NameOf);

}  // namespace
}  // namespace tandem
