#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/lora/lora_merge.h"
#include "common/lora/lora_shape.h"
#include "common/lora/peft_files.h"
#include "common/tensor/bf16_rounding.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using testing::IsOk;
using testing::TempDir;

constexpr auto kBadValue = absl::StatusCode::kInvalidArgument;

ModelConfig TwoLayers(bool tied) {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.vocab_size = 10;
  config.tie_word_embeddings = tied;
  return config;
}

TEST(LoraModulesTest, AllLinearIsEveryLinearLayerOfTheLayersAndNotTheHead) {
  const auto modules = LoraModules(TwoLayers(false), {.rank = 4});
  ASSERT_THAT(modules, IsOk());
  ASSERT_EQ(modules->size(), 14u);  // q, k, v, o, gate, up, down of two layers
  EXPECT_EQ(modules->front().weight, "model.layers.0.self_attn.q_proj.weight");
  EXPECT_EQ(modules->front().a_name(),
            "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(modules->back().weight, "model.layers.1.mlp.down_proj.weight");
  EXPECT_EQ(modules->back().out, 8);
  EXPECT_EQ(modules->back().in, 12);
}

TEST(LoraModulesTest, NamedTargetsAreFoundByTheEndOfTheirNames) {
  const auto modules = LoraModules(TwoLayers(false), {.rank = 4, .targets = {"v_proj", "lm_head"}});
  ASSERT_THAT(modules, IsOk());
  ASSERT_EQ(modules->size(), 3u);
  EXPECT_EQ((*modules)[1].weight, "model.layers.1.self_attn.v_proj.weight");
  EXPECT_EQ((*modules)[2].b_name(), "base_model.model.lm_head.lora_B.weight");
  const std::vector<TensorSpec> tensors = LoraTensors(*modules, 4, DType::kF32);
  ASSERT_EQ(tensors.size(), 6u);
  EXPECT_THAT(tensors[0].shape, ElementsAre(4, 8));
  EXPECT_THAT(tensors[1].shape, ElementsAre(4, 4));
  EXPECT_THAT(tensors[5].shape, ElementsAre(10, 4));
}

// As PEFT matches them: a target ends a module's name, from a dot on.
TEST(LoraModulesTest, ATargetMayNameTheLayerToo) {
  const auto one = LoraModules(TwoLayers(false), {.rank = 4, .targets = {"layers.1.mlp.up_proj"}});
  ASSERT_THAT(one, IsOk());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->front().weight, "model.layers.1.mlp.up_proj.weight");
  EXPECT_THAT(LoraModules(TwoLayers(false), {.rank = 4, .targets = {"proj"}}),
              FailsWith(kBadValue, "'proj' is none of"));
}

TEST(LoraModulesTest, RefusesTargetsThatTheModelDoesNotHave) {
  EXPECT_THAT(LoraModules(TwoLayers(false), {.rank = 4, .targets = {"q_proj", "c_attn"}}),
              FailsWith(kBadValue,
                        "'c_attn' is none of the model's linear layers: all-linear, down_proj, "
                        "gate_proj, k_proj, lm_head"));
  EXPECT_THAT(LoraModules(TwoLayers(true), {.rank = 4, .targets = {"lm_head"}}),
              FailsWith(kBadValue, "the model's head is its embedding"));
}

TEST(LoraOptionsTest, TheScalingIsAlphaOverRankOrItsRoot) {
  EXPECT_EQ((LoraOptions{.rank = 16, .alpha = 32}).scaling(), 2.0f);
  EXPECT_EQ((LoraOptions{.rank = 16, .alpha = 32, .rslora = true}).scaling(), 8.0f);
}

TEST(MergeLoraTest, AddsTheScaledProductWorkedOutByHand) {
  // B = [[1, 2], [0, -1]], A = [[1, 0, 2], [3, 1, 0]]: B A = [[7, 2, 2], [-3, -1, 0]].
  const std::vector<float> a = {1, 0, 2, 3, 1, 0}, b = {1, 2, 0, -1};
  const std::vector<float> base = {10, 10, 10, 20, 20, 20};
  std::vector<float> merged(6);
  const LoraFactors adapter = {a.data(), b.data(), 2, 3, 0.5f};
  MergeLora(adapter, 0, 2, base.data(), merged.data());
  EXPECT_THAT(merged, ElementsAre(13.5f, 11, 11, 18.5f, 19.5f, 20));
  // Rows by themselves give the same.
  std::vector<float> second(3);
  MergeLora(adapter, 1, 1, base.data() + 3, second.data());
  EXPECT_THAT(second, ElementsAre(18.5f, 19.5f, 20));
}

// Bit for bit, so that servers that loaded the base need no push of fresh adapters.
TEST(MergeLoraTest, AnAdapterWhoseBIsZeroLeavesTheBaseAndItsSigns) {
  const std::vector<float> a(32, 0.3f), b(16, 0.0f);
  std::vector<float> base(32, 1.25f), merged(32);
  base[5] = -0.0f;
  MergeLora({a.data(), b.data(), 4, 8, 2.0f}, 0, 4, base.data(), merged.data());
  EXPECT_EQ(merged, base);
  EXPECT_TRUE(std::signbit(merged[5]));
}

// Base 1 and s B A = 2^-8, 3 * 2^-8: half of a bf16 step above 1, and one and a half.
TEST(ServeMergedTest, RoundsAsAPushDoesAndSumsWhatArrived) {
  const std::vector<float> a = {0.00390625f, 0.01171875f}, b = {1};
  const std::vector<uint16_t> base = {NearestBf16(1.0f), NearestBf16(1.0f)};
  std::vector<uint16_t> served(2);
  const LoraFactors adapter = {a.data(), b.data(), 1, 2, 1.0f};
  const LoraEffect nearest = ServeMerged(adapter, "w", false, 0, 1, base.data(), served.data());
  EXPECT_EQ(Bf16ToFloat(served[0]), 1.0f);  // to even
  EXPECT_EQ(Bf16ToFloat(served[1]), 1.015625f);
  EXPECT_DOUBLE_EQ(nearest.squared_change, 10.0 / 65536);
  EXPECT_DOUBLE_EQ(nearest.arrived, 3.0 * 4 / 65536);
  EXPECT_DOUBLE_EQ(nearest.squared_loss, 2.0 / 65536);
  EXPECT_EQ(nearest.changed, 1);
  ServeMerged(adapter, "w", true, 0, 1, base.data(), served.data());
  const uint64_t name = DitherNameHash("w");
  EXPECT_EQ(served[0], DitherBf16(1.00390625f, name, 0));
  EXPECT_EQ(served[1], DitherBf16(1.01171875f, name, 1));
}

// Over many elements dither loses nothing on average, where rounding to nearest loses everything.
TEST(ServeMergedTest, DitherLetsChangesOfATenthOfAStepArrive) {
  const std::vector<float> a(1000, 0.00078125f), b(20, 1.0f);
  const std::vector<uint16_t> base(20'000, NearestBf16(1.0f));
  std::vector<uint16_t> served(base.size());
  const LoraFactors adapter = {a.data(), b.data(), 1, 1000, 1.0f};
  EXPECT_EQ(ServeMerged(adapter, "w", false, 0, 20, base.data(), served.data()).changed, 0);
  const LoraEffect dithered = ServeMerged(adapter, "w", true, 0, 20, base.data(), served.data());
  EXPECT_NEAR(dithered.arrived / dithered.squared_change, 1, 0.1);
  // Parts give the same.
  std::vector<uint16_t> parts(base.size());
  for (const int64_t first : {0, 7}) {
    ServeMerged(adapter, "w", true, first, first == 0 ? 7 : 13, base.data(),
                parts.data() + first * 1000);
  }
  EXPECT_EQ(parts, served);
}

TEST(ServeMergedTest, OfAnFp32ServerTheSumIsServed) {
  const std::vector<float> a = {0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f}, b = {0.7f, 0.8f, 0.9f};
  const std::vector<float> base = {1, 2};
  std::vector<float> merged(2), served(2);
  const LoraFactors adapter = {a.data(), b.data(), 3, 2, 0.5f};
  MergeLora(adapter, 0, 1, base.data(), merged.data());
  const LoraEffect effect = ServeMerged(adapter, "w", true, 0, 1, base.data(), served.data());
  EXPECT_EQ(served, merged);
  EXPECT_FLOAT_EQ(served[0], 1 + 0.5f * (0.07f + 0.24f + 0.45f));
  EXPECT_EQ(effect.changed, 2);
}

class PeftFilesTest : public ::testing::Test {
 protected:
  // Writes an adapter whose tensors hold 1, 2, 3, ...
  void Write(const LoraOptions& options) {
    const auto modules = LoraModules(config_, options);
    ASSERT_THAT(modules, IsOk());
    std::vector<TensorSource> tensors;
    float next = 0;
    for (const TensorSpec& spec : LoraTensors(*modules, options.rank, DType::kF32)) {
      auto values = std::make_shared<std::vector<float>>();
      for (int64_t i = 0; i < spec.num_elements(); ++i) values->push_back(++next);
      tensors.push_back(Present({spec, std::as_bytes(std::span(*values)), values}));
    }
    ASSERT_THAT(
        WritePeftDirectory(folder_.path(), PeftConfigText("some/base", options, *modules), tensors),
        IsOk());
  }
  void WriteConfig(const std::string& text) {
    std::ofstream(folder_.path() + "/adapter_config.json") << text;
  }

  const ModelConfig config_ = TwoLayers(true);
  const TempDir folder_;
};

TEST_F(PeftFilesTest, WhatIsWrittenIsReadBack) {
  const LoraOptions options = {
      .rank = 3, .alpha = 12, .targets = {"q_proj", "down_proj"}, .dropout = 0.1, .rslora = true};
  Write(options);
  EXPECT_TRUE(IsPeftDirectory(folder_.path()));
  const auto read = ReadPeftDirectory(folder_.path(), config_);
  ASSERT_THAT(read, IsOk());
  EXPECT_EQ(read->options.rank, 3);
  EXPECT_EQ(read->options.alpha, 12);
  EXPECT_EQ(read->options.dropout, 0.1);
  EXPECT_TRUE(read->options.rslora);
  EXPECT_EQ(read->modules.size(), 4u);
  float first = 0;
  std::memcpy(&first, read->tensors[1].bytes.data(), sizeof(first));
  EXPECT_EQ(first, 25.0f);  // A of the first module has 3 x 8 elements
}

TEST_F(PeftFilesTest, RefusesByNameWhatItDoesNotHave) {
  const auto refuses = [&](const char* config, const char* words) {
    WriteConfig(config);
    EXPECT_THAT(ReadPeftDirectory(folder_.path(), config_).status(),
                FailsWith(absl::StatusCode::kUnimplemented, words));
  };
  refuses(R"({"peft_type": "LOHA", "r": 4})", "peft_type is LOHA");
  refuses(R"({"use_qalora": true})", "use_qalora is not supported");
  refuses(R"({"alora_invocation_tokens": [1, 2]})", "alora_invocation_tokens is not supported");
  refuses(R"({"peft_type": "LORA", "use_dora": true})", "use_dora is not supported");
  refuses(R"({"bias": "all"})", "bias is 'all'");
  refuses(R"({"rank_pattern": {"q_proj": 8}})", "rank_pattern is not supported");
  refuses(R"({"modules_to_save": ["embed_tokens"]})", "modules_to_save is not supported");
}

TEST_F(PeftFilesTest, RefusesFilesThatDoNotFitTheModel) {
  WriteConfig("{");
  EXPECT_THAT(ReadPeftDirectory(folder_.path(), config_),
              FailsWith(kBadValue, "not a JSON object"));
  WriteConfig(R"({"lora_alpha": 8, "target_modules": ["q_proj"]})");
  EXPECT_THAT(ReadPeftDirectory(folder_.path(), config_),
              FailsWith(kBadValue, "the field r is missing"));
  const auto rejects = [&](const char* config, const char* words) {
    WriteConfig(config);
    EXPECT_THAT(ReadPeftDirectory(folder_.path(), config_), FailsWith(kBadValue, words));
  };
  rejects(R"({"r": 2.7, "lora_alpha": 8, "target_modules": ["q_proj"]})", "2.7");
  rejects(R"({"r": 99999999, "lora_alpha": 8, "target_modules": ["q_proj"]})", "99999999");
  rejects(R"({"r": 2, "lora_alpha": "8", "target_modules": ["q_proj"]})", "lora_alpha");
  rejects(R"({"r": 2, "lora_alpha": 8, "lora_dropout": 1.5, "target_modules": ["q_proj"]})",
          "lora_dropout is 1.5");
  rejects(R"({"r": 2, "lora_alpha": 8, "target_modules": null})", "target_modules: want a list");
  rejects(R"({"r": 2, "lora_alpha": 8, "target_modules": ["w1"]})",
          "adapter_config.json: target_modules: 'w1' is none of");
  rejects(R"({"peft_type": 7, "r": 2})", "peft_type");
  Write({.rank = 3, .targets = {"q_proj"}});
  WriteConfig(R"({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]})");
  EXPECT_THAT(ReadPeftDirectory(folder_.path(), config_),
              FailsWith(kBadValue, "want the shape of"));
  WriteConfig(R"({"r": 3, "lora_alpha": 8, "target_modules": ["k_proj"]})");
  EXPECT_THAT(ReadPeftDirectory(folder_.path(), config_),
              FailsWith(kBadValue, "k_proj.lora_A.weight is missing"));
}

}  // namespace
}  // namespace tandem
