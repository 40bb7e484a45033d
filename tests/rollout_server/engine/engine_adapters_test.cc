// Adapters beside the weights: what they add, that requests may choose among them, and what is kept apart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/lora/adapted_model.h"
#include "common/lora/peft_files.h"
#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;
using tandem::testing::IsOk;

constexpr auto kBadValue = absl::StatusCode::kInvalidArgument;

class EngineAdaptersTest : public EngineFixture {
 protected:
  // An adapter of every linear layer, with B of this size.
  static LoraAdapter Adapter(const Engine& engine, int64_t rank, uint64_t seed, double size) {
    LoraAdapter adapter;
    adapter.options.rank = rank;
    adapter.options.alpha = 2.0 * static_cast<double>(rank);
    if (!engine.config().tie_word_embeddings) adapter.options.targets.push_back("lm_head");
    auto modules = LoraModules(engine.config(), adapter.options);
    EXPECT_THAT(modules, IsOk());
    adapter.modules = *std::move(modules);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (const TensorSpec& spec : LoraTensors(adapter.modules, rank, DType::kF32)) {
      const bool is_b = spec.name.find("lora_B") != std::string::npos;
      auto values = std::make_shared<std::vector<float>>();
      for (int64_t i = 0; i < spec.num_elements(); ++i) {
        values->push_back(static_cast<float>(is_b ? size : 0.2) * normal(random));
      }
      adapter.tensors.push_back({spec, std::as_bytes(std::span(*values)), values});
    }
    return adapter;
  }

  static std::string Write(const std::string& folder, const LoraAdapter& adapter) {
    std::filesystem::create_directory(folder);
    const std::string config = PeftConfigText(directory(), adapter.options, adapter.modules);
    EXPECT_THAT(WritePeftDirectory(folder, config, PresentAll(adapter.tensors)), IsOk());
    return folder;
  }

  // Options of an engine with the adapters "a" of rank 4, "b" of rank 3, and "none", whose B is zero.
  EngineOptions WithAdapters(EngineOptions options) {
    const auto plain = Make(Fp32());
    options.lora_modules = {{"a", Write(folder_.path() + "/a", Adapter(*plain, 4, 1, 0.05))},
                            {"b", Write(folder_.path() + "/b", Adapter(*plain, 3, 2, 0.05))},
                            {"none", Write(folder_.path() + "/none", Adapter(*plain, 2, 3, 0))}};
    return options;
  }

  static std::vector<float> Score(Engine& engine, const std::string& adapter) {
    const auto scores = engine.Score({{Prompt(40, 1)}}, {.adapter = adapter});
    EXPECT_THAT(scores, IsOk());
    return scores.ok() ? (*scores)[0].logprobs : std::vector<float>();
  }

  static GroupRequest Under(const std::string& adapter, GroupKey key) {
    GroupRequest group = Group(key, 40, 2, 8);
    group.prompt = Prompt(40, 7);
    group.adapter = adapter;
    return group;
  }

  tandem::testing::TempDir folder_;
};

TEST_F(EngineAdaptersTest, LogProbsAreThoseOfTheMergedModel) {
  for (const bool tied : {true, false}) {  // untied, the head has an adapter too
    tandem::testing::TempDir model;
    ModelConfig config = tandem::testing::TinyModelConfig();
    config.tie_word_embeddings = tied;
    ASSERT_THAT(tandem::testing::WriteTinyModel(model.path(), TANDEM_SOURCE_DIR, config, 5),
                IsOk());
    auto merged = Engine::Create(model.path(), Fp32());
    ASSERT_THAT(merged, IsOk());
    const LoraAdapter adapter = Adapter(**merged, 4, 1, 0.05);
    EngineOptions options = Fp32();
    options.lora_modules = {{"a", Write(model.path() + "/adapter", adapter)}};
    auto engine = Engine::Create(model.path(), options);
    ASSERT_THAT(engine, IsOk());
    auto tensors = MergeAdapter(adapter, (*merged)->initial_tensors());
    ASSERT_THAT(tensors, IsOk());
    auto staged = (*merged)->Stage(*std::move(tensors));
    ASSERT_THAT(staged, IsOk());
    const std::vector<float> base = Score(**merged, "");
    (*merged)->Install(*std::move(staged), WeightVersion{1});
    const std::vector<float> want = Score(**merged, "");
    EXPECT_LT(LargestGap(Score(**engine, "a"), want), 1e-4);
    EXPECT_GT(LargestGap(base, want), 0.1) << "the adapter does something";
    EXPECT_EQ(Score(**engine, ""), base);
  }
}

// Inputs in int8, both kinds of heads of int8, and floating point.
TEST_F(EngineAdaptersTest, AnAdapterThatAddsNothingLeavesEveryBitInEveryFormat) {
  for (const WeightScheme scheme : {WeightScheme::kWide, WeightScheme::kInt8,
                                    WeightScheme::kFp8E4m3, WeightScheme::kInt4Group}) {
    EngineOptions options = WithAdapters(Fp32());
    options.dtype = ComputeDType::kBf16;
    options.quantised.weights = scheme;
    const auto engine = Make(options);
    EXPECT_EQ(Score(*engine, "none"), Score(*engine, ""));
    EXPECT_GT(LargestGap(Score(*engine, "a"), Score(*engine, "")), 0.1);
  }
}

TEST_F(EngineAdaptersTest, RequestsOfSeveralAdaptersInOneBatchGetTheBitsThatEachGetsAlone) {
  const EngineOptions options = WithAdapters(Fp32());
  const std::vector<GroupRequest> groups = {Under("a", 1), Under("", 2), Under("b", 3),
                                            Under("a", 4)};
  const Completions together = Generate(options, groups);
  ASSERT_EQ(together.size(), groups.size());
  for (const GroupRequest& group : groups) {
    ExpectSameBytes(together, Generate(options, {group}));
  }
  EXPECT_NE(together.at(1).at(0).raw_logprobs, together.at(2).at(0).raw_logprobs);
}

TEST_F(EngineAdaptersTest, KvOfOneAdapterIsFoundUnderNoOther) {
  const auto engine = Make(WithAdapters(Fp32()));
  const auto hits = [&](const std::string& adapter, GroupKey key) {
    const uint64_t before = engine->Stats().num_prefix_hits;
    EXPECT_THAT(engine->Add(Under(adapter, key)), IsOk());
    RunToEnd(*engine);
    return engine->Stats().num_prefix_hits - before;
  };
  EXPECT_EQ(hits("a", 1), 0u);
  EXPECT_EQ(hits("b", 2), 0u);
  EXPECT_EQ(hits("", 3), 0u);
  EXPECT_GT(hits("a", 4), 0u);
  EXPECT_GT(hits("", 5), 0u);
}

TEST_F(EngineAdaptersTest, AStagedAdapterStandsBesideTheLoadedWeightsFromItsInstallOn) {
  EngineOptions options = WithAdapters(Fp32());
  options.lora = LoraPlace::kUnmerged;
  const auto engine = Make(options);
  EXPECT_TRUE(engine->unmerged());
  const std::vector<float> base = Score(*engine, ""), a = Score(*engine, "a");
  for (const auto& [rank, seed, want] : {std::tuple(4, 1, "a"), {3, 2, "b"}}) {
    const auto factors = FactorsOf(Adapter(*engine, rank, static_cast<uint64_t>(seed), 0.05));
    ASSERT_THAT(factors, IsOk());
    auto staged = engine->StageAdapter(*factors);
    ASSERT_THAT(staged, IsOk());
    engine->Install(*std::move(staged), WeightVersion{seed});
    EXPECT_EQ(Score(*engine, ""), Score(*engine, want)) << "in place of the one before";
    EXPECT_EQ(Score(*engine, "a"), a) << "a named one is in place of what is pushed";
  }
  auto whole = engine->Stage(engine->initial_tensors());
  ASSERT_THAT(whole, IsOk());
  engine->Install(*std::move(whole), WeightVersion{3});
  EXPECT_EQ(Score(*engine, ""), base);
}

TEST_F(EngineAdaptersTest, TheChangeOfAWeightIsTheNormOfTheMergedDifference) {
  const auto engine = Make(Fp32());
  const LoraAdapter adapter = Adapter(*engine, 4, 1, 0.05);
  const auto factors = FactorsOf(adapter);
  ASSERT_THAT(factors, IsOk());
  const auto merged = MergeAdapter(adapter, engine->initial_tensors());
  ASSERT_THAT(merged, IsOk());
  for (size_t m = 0; m < adapter.modules.size(); ++m) {
    const auto of = [&](const std::vector<HostTensor>& tensors) {
      return std::ranges::find_if(tensors, [&](const HostTensor& tensor) {
        return tensor.spec.name == adapter.modules[m].weight;
      });
    };
    const HostTensor &before = *of(engine->initial_tensors()), &after = *of(*merged);
    double squares = 0;
    for (int64_t i = 0; i < before.spec.num_elements(); ++i) {
      const double change = reinterpret_cast<const float*>(after.bytes.data())[i] -
                            double{reinterpret_cast<const float*>(before.bytes.data())[i]};
      squares += change * change;
    }
    EXPECT_NEAR(SquaredChange(*factors, m) / squares, 1, 1e-4) << adapter.modules[m].weight;
  }
}

TEST_F(EngineAdaptersTest, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const auto engine = Make(WithAdapters(Fp32()));
  EXPECT_THAT(engine->Add(Under("c", 1)),
              FailsWith(kBadValue, "no adapter is named 'c'; this server has a, b, none"));
  EXPECT_THAT(engine->Score({{Prompt(4, 1)}}, {.adapter = "c"}),
              FailsWith(kBadValue, "no adapter is named 'c'"));
  EXPECT_THAT(Make(Fp32())->Add(Under("a", 1)),
              FailsWith(kBadValue, "this server has none (server.engine.lora_modules)"));
}

TEST_F(EngineAdaptersTest, WhatContradictsIsRefused) {
  EngineOptions options = Fp32();
  options.lora = LoraPlace::kUnmerged;
  options.numerics = Numerics::kExact;
  EXPECT_THAT(Engine::Create(directory(), options),
              FailsWith(kBadValue, "engine.lora unmerged with numerics exact"));
  options.numerics = Numerics::kFast;
  options.faults.stale_versions = 1;
  EXPECT_THAT(Engine::Create(directory(), options),
              FailsWith(kBadValue, "engine.lora unmerged with drift.inject"));
  options = Fp32();
  options.lora_modules = {{"french", "/nowhere"}};
  EXPECT_THAT(Engine::Create(directory(), options),
              FailsWith(absl::StatusCode::kNotFound,
                        "server.engine.lora_modules: french: /nowhere/adapter_config.json"));
  EXPECT_THAT(Make(Fp32())->StageAdapter({}),
              FailsWith(absl::StatusCode::kFailedPrecondition, "set server.engine.lora"));
}

}  // namespace
}  // namespace tandem::rollout
