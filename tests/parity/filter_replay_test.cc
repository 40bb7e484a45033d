// SmolLM2 in fp32 (make check-full): tokens that were sampled with top-p 0.8 are scored by the
// policy, over the ids from which they were sampled and over all ids.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "rollout_server/engine/engine.h"
#include "tests/support/status_matchers.h"
#include "trainer/policy/policy.h"

namespace tandem {
namespace {

constexpr float kTopP = 0.8f;

struct Drawn {
  std::vector<int32_t> prompt;
  rollout::FinishedCompletion completion;
};

std::vector<Drawn> Draw(const std::string& model) {
  rollout::EngineOptions options;
  options.dtype = ComputeDType::kFp32;
  const auto engine = rollout::Engine::Create(model, options).value();
  std::vector<std::vector<int32_t>> prompts;
  for (int g = 0; g < 8; ++g) {
    rollout::GroupRequest request;
    request.key = g;
    request.prompt = engine->tokenizer()
                         .Encode("Tell me " + std::to_string(g + 2) + " facts about the number " +
                                 std::to_string(37 * g + 5))
                         .value();
    request.num_completions = 8;
    request.sampling.top_p = kTopP;
    request.sampling.return_support = true;
    request.sampling.max_new_tokens = 64;
    request.sampling.ignore_eos = true;
    request.sampling.seed = static_cast<uint64_t>(g);
    prompts.push_back(request.prompt);
    EXPECT_THAT(engine->Add(std::move(request)), testing::IsOk());
  }
  std::vector<Drawn> drawn;
  while (engine->HasWork()) {
    auto events = engine->Step();
    EXPECT_THAT(events, testing::IsOk());
    for (rollout::EngineEvent& event : *events) {
      auto* finished = std::get_if<rollout::CompletionFinished>(&event);
      if (finished == nullptr) continue;
      drawn.push_back(
          {prompts[static_cast<size_t>(finished->key)], std::move(finished->completion)});
    }
  }
  return drawn;
}

struct Deltas {
  double mean_abs_delta = 0, mean_w = 0;
  int64_t tokens = 0;
};

Deltas Rescore(trainer::Policy& policy, const std::vector<Drawn>& drawn, bool replay) {
  Deltas sum;
  for (const Drawn& one : drawn) {
    trainer::GroupTokens tokens{.prompt = one.prompt, .completions = {one.completion.token_ids}};
    if (replay) {
      tokens.support.emplace_back(one.completion.support.begin(), one.completion.support.end());
    }
    const trainer::PackedRow row = trainer::PackRow(std::vector{tokens}).value();
    const trainer::TokenScores scores = policy.Score(row, 1, /*with_gradient=*/false).value();
    const float* logprobs =
        scores.logprobs.const_data_ptr<float>() + row.segments[row.completion_segments[0]].begin;
    for (size_t t = 0; t < one.completion.token_ids.size(); ++t) {
      const double delta = double{logprobs[t]} - one.completion.behaviour_logprobs[t];
      sum.mean_abs_delta += std::fabs(delta);
      sum.mean_w += std::exp(delta);
      ++sum.tokens;
    }
  }
  sum.mean_abs_delta /= static_cast<double>(sum.tokens);
  sum.mean_w /= static_cast<double>(sum.tokens);
  return sum;
}

TEST(FilterReplayTest, ReplayedSupportsLeaveNothingOfTopPInDelta) {
  const std::string model = std::string(TANDEM_SOURCE_DIR) + "/models/smollm2-135m-instruct";
  const auto config = ReadModelConfig(model);
  ASSERT_THAT(config, testing::IsOk());
  const std::vector<Drawn> drawn = Draw(model);
  double kept_mass = 0;
  for (const Drawn& one : drawn) {
    for (const float mass : one.completion.kept_mass) kept_mass += mass;
  }
  const auto tensors = MatchModelTensors(*config, ReadModelTensors(model).value()).value();
  const auto policy =
      trainer::Policy::Create(*config, tensors, ComputeDType::kFp32, false, Numerics::kFast)
          .value();
  const Deltas with = Rescore(*policy, drawn, true), without = Rescore(*policy, drawn, false);
  EXPECT_EQ(with.tokens, 8 * 8 * 64);
  EXPECT_LE(with.mean_abs_delta, 1e-5);
  EXPECT_NEAR(with.mean_w, 1, 1e-5);
  // Without the filter, w of each token is the probability mass that top-p retained.
  EXPECT_NEAR(without.mean_w, kept_mass / static_cast<double>(without.tokens), 1e-4);
  EXPECT_GT(without.mean_w, 0.8);
  EXPECT_LT(without.mean_w, 0.95);
  RecordProperty("mean_abs_delta_with_replay", std::to_string(with.mean_abs_delta));
  RecordProperty("mean_w_without", std::to_string(without.mean_w));
}

}  // namespace
}  // namespace tandem
