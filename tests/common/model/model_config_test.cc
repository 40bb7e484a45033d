#include "common/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using testing::FailsWith;
using ::testing::IsEmpty;
using testing::IsOk;
using testing::TempDir;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// A small configuration of `type`, with `changes` merged in (null removes a field).
std::string Config(const std::string& type, const Json& changes = Json::object()) {
  Json json = {{"model_type", type},       {"vocab_size", 320},
               {"hidden_size", 64},        {"intermediate_size", 96},
               {"num_hidden_layers", 2},   {"num_attention_heads", 4},
               {"num_key_value_heads", 2}, {"max_position_embeddings", 512},
               {"eos_token_id", 2}};
  json.merge_patch(changes);
  return json.dump();
}

absl::StatusOr<ModelConfig> Parse(const std::string& type, const Json& changes = Json::object()) {
  return ParseModelConfig(Config(type, changes), "config.json");
}

TEST(ModelConfig, ReadsSmolLm2) {
  const auto config =
      ReadModelConfig(std::string(TANDEM_SOURCE_DIR) + "/tests/testdata/smollm2-tokenizer");
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->model_type, "llama");
  EXPECT_EQ(config->vocab_size, 49152);
  EXPECT_EQ(config->hidden_size, 576);
  EXPECT_EQ(config->num_layers, 30);
  EXPECT_EQ(config->num_heads, 9);
  EXPECT_EQ(config->num_kv_heads, 3);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->rope.theta, 100000);
  EXPECT_EQ(config->rms_norm_eps, 1e-5);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_FALSE(config->attention_qkv_bias);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config->bos_token_id, 1);
  EXPECT_EQ(config->pad_token_id, 2);
}

TEST(ModelConfig, KnowsWhatEachFamilyImplies) {
  const auto qwen2 = Parse("qwen2", {{"attention_bias", false}});
  ASSERT_THAT(qwen2, IsOk());
  EXPECT_TRUE(qwen2->attention_qkv_bias);
  EXPECT_FALSE(qwen2->attention_o_bias);
  EXPECT_EQ(qwen2->qk_norm, QkNorm::kNone);
  EXPECT_EQ(qwen2->head_dim, 16);
  EXPECT_EQ(qwen2->bos_token_id, -1);

  const auto qwen3 = Parse("qwen3", {{"attention_bias", true}});
  ASSERT_THAT(qwen3, IsOk());
  EXPECT_EQ(qwen3->qk_norm, QkNorm::kPerHead);
  EXPECT_TRUE(qwen3->attention_qkv_bias && qwen3->attention_o_bias);
  EXPECT_EQ(qwen3->head_dim, 128);  // transformers' default, not hidden / heads

  const auto llama = Parse("llama", {{"mlp_bias", true}, {"head_dim", 24}});
  ASSERT_THAT(llama, IsOk());
  EXPECT_TRUE(llama->mlp_bias);
  EXPECT_FALSE(llama->attention_qkv_bias);
  EXPECT_FALSE(llama->tie_word_embeddings);
  EXPECT_EQ(llama->head_dim, 24);
  EXPECT_EQ(llama->rms_norm_eps, 1e-6);
  EXPECT_EQ(llama->rope.theta, 10000);
  EXPECT_EQ(llama->bos_token_id, 1);
}

TEST(ModelConfig, KnowsWhereOtherFamiliesDiffer) {
  const auto gemma = Parse("gemma2", {{"num_hidden_layers", 3}, {"head_dim", 24}});
  ASSERT_THAT(gemma, IsOk());
  EXPECT_EQ(gemma->activation, Activation::kGeluTanh);
  EXPECT_EQ(gemma->norm_offset, 1);
  EXPECT_EQ(gemma->embedding_scale, 8);          // the root of 64
  EXPECT_EQ(gemma->attention_scale(), 0.0625F);  // query_pre_attn_scalar is 256 where silent
  EXPECT_EQ(gemma->attention_softcap, 50);
  EXPECT_EQ(gemma->logit_softcap, 30);
  EXPECT_TRUE(gemma->tie_word_embeddings);
  EXPECT_THAT(gemma->layer_forms,
              ElementsAre(LayerForm{.window = 4096}, LayerForm{}, LayerForm{.window = 4096}));
  EXPECT_EQ(gemma->norms.mlp_out, "post_feedforward_layernorm");
  EXPECT_EQ(Parse("gemma2", {{"num_hidden_layers", 1}})->layer_forms.size(), 1);

  const auto gemma3 = Parse("gemma3_text", {{"num_hidden_layers", 6}, {"sliding_window", 512}});
  ASSERT_THAT(gemma3, IsOk());
  EXPECT_EQ(gemma3->layer(4), (LayerForm{.window = 512, .sliding_rope = true}));
  EXPECT_EQ(gemma3->layer(5), LayerForm{});
  EXPECT_EQ(gemma3->rope.theta, 1e6);
  EXPECT_EQ(gemma3->sliding_rope->theta, 10000);
  EXPECT_EQ(gemma3->attention_softcap, 0);

  const auto smol = Parse("smollm3", {{"num_hidden_layers", 4}});
  ASSERT_THAT(smol, IsOk());
  EXPECT_THAT(smol->layer_forms,
              ElementsAre(LayerForm{}, LayerForm{}, LayerForm{}, LayerForm{.has_rotary = false}));

  const auto glm = Parse("glm4", {{"head_dim", 24}});
  ASSERT_THAT(glm, IsOk());
  EXPECT_EQ(glm->rotated_elements(), 12);
  EXPECT_TRUE(glm->interleaved_rotary && glm->attention_qkv_bias && !glm->attention_o_bias);
  EXPECT_TRUE(glm->fused_gate_up && !glm->fused_qkv);

  EXPECT_THAT(Parse("mistral", {{"sliding_window", nullptr}}), IsOk());
  EXPECT_EQ(Parse("qwen2",
                  {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 1}})
                ->layer(1)
                .window,
            64);
}

// The long factors begin beyond 256 tokens, where positions that were computed before would change.
TEST(ModelConfig, EndsTheContextOfLongRopeAtTheOriginalOne) {
  const std::vector<double> short_factor(8, 1.5), long_factor(8, 4);
  const auto config = Parse(
      "phi3", {{"original_max_position_embeddings", 256},
               {"rope_scaling",
                {{"type", "su"}, {"short_factor", short_factor}, {"long_factor", long_factor}}}});
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->max_position_embeddings, 256);
  EXPECT_EQ(config->rope.type, RopeType::kLongRope);
  EXPECT_NEAR(config->rope.attention_factor, std::sqrt(1 + std::log(2) / std::log(256)), 1e-12);
}

TEST(ModelConfig, TakesAsManyKeyHeadsAsHeadsWhereSilent) {
  EXPECT_EQ(Parse("llama", {{"num_key_value_heads", nullptr}})->num_kv_heads, 4);
}

TEST(ModelConfig, ReadsBothSpellingsOfRotaryScaling) {
  const Json numbers = {{"factor", 8.0},
                        {"low_freq_factor", 1},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  Json version_4 = numbers, version_5 = numbers;
  version_4["rope_type"] = "llama3";
  version_5["rope_type"] = "llama3";
  version_5["rope_theta"] = 500000.0;
  for (const Json& changes :
       {Json{{"rope_theta", 500000}, {"rope_scaling", version_4}, {"torch_dtype", "bfloat16"}},
        Json{{"rope_parameters", version_5}, {"dtype", "bfloat16"}}}) {
    const auto config = Parse("llama", changes);
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->rope.theta, 500000);
    EXPECT_EQ(config->checkpoint_dtype, DType::kBF16);
    EXPECT_EQ(config->rope.type, RopeType::kLlama3);
    EXPECT_EQ(config->rope.factor, 8);
    EXPECT_EQ(config->rope.low_freq_factor, 1);
    EXPECT_EQ(config->rope.high_freq_factor, 4);
    EXPECT_EQ(config->rope.original_max_position_embeddings, 64);
  }
}

TEST(ModelConfig, ReadsAnUnscaledRopeParametersObject) {
  const auto config =
      Parse("qwen2", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}}});
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->rope.theta, 1e6);
  EXPECT_EQ(config->rope.type, RopeType::kDefault);
}

TEST(ModelConfig, AcceptsWhatIsNamedButSwitchedOff) {
  EXPECT_THAT(Parse("qwen2", {{"use_sliding_window", false},
                              {"sliding_window", 4096},
                              {"layer_types", {"full_attention", "full_attention"}},
                              {"architectures", {"Qwen2ForCausalLM"}}}),
              IsOk());
  EXPECT_THAT(
      Parse("llama",
            {{"pretraining_tp", 1}, {"rope_interleaved", false}, {"partial_rotary_factor", 1.0}}),
      IsOk());
}

struct Refusal {
  const char* type;
  Json changes;
  const char* message;
};

TEST(ModelConfig, RefusesWhatIsNotSupportedByName) {
  const std::vector<Refusal> cases = {
      {"gemma", Json::object(), "model_type 'gemma' is not supported; supported: llama"},
      {"qwen2_moe", Json::object(), "'qwen2_moe'"},
      {"qwen3_moe", Json::object(), "'qwen3_moe'"},
      {"mixtral", Json::object(), "'mixtral'"},
      {"llama", {{"architectures", {"LlamaForSequenceClassification"}}}, "architectures"},
      {"llama",
       {{"model_type", nullptr}, {"architectures", {"MambaForCausalLM"}}},
       "architectures [\"MambaForCausalLM\"], and no model_type: the model is not supported; "
       "supported: llama"},
      {"llama", {{"hidden_act", "gelu"}}, "hidden_act 'gelu' is not supported; supported: silu"},
      {"llama",
       {{"quantization_config", {{"quant_method", "gptq"}}}},
       "quantization_config: the checkpoint is already quantised (gptq); use the float checkpoint"},
      {"llama",
       {{"compression_config", {{"quant_method", "compressed-tensors"}}}},
       "already quantised (compressed-tensors)"},
      {"llama", {{"num_local_experts", 8}}, "mixture of experts"},
      {"llama", {{"sliding_window", 4096}}, "sliding_window"},
      {"qwen3", {{"layer_types", {"full_attention", "sliding_attention"}}}, "sliding_attention"},
      {"llama", {{"pretraining_tp", 2}}, "pretraining_tp"},
      {"llama", {{"rope_interleaved", true}}, "rope_interleaved"},
      {"llama", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {"llama", {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}, "partial_rotary_factor"},
      {"llama", {{"rope_scaling", {{"rope_type", "dynamic"}}}}, "rope_type 'dynamic'"},
      {"olmo2", {{"sliding_window", 64}}, "sliding_window"},
      {"mistral", {{"layer_types", {"full_attention", "full_attention"}}}, "layer_types"},
      {"gemma2", {{"hidden_activation", "gelu"}}, "supported: gelu_pytorch_tanh"},
      {"gemma3_text", {{"use_bidirectional_attention", true}}, "use_bidirectional_attention"},
      {"gemma3", Json::object(), "it has an image encoder; its text-only kind is gemma3_text"},
      {"smollm3", {{"layer_types", {"full_attention", "chunked_attention"}}}, "chunked_attention"},
      {"gemma3_text",
       {{"rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2}}}}}},
       "sliding_attention: rope_type other than default"},
      {"qwen3",
       {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
       "per layer type"},
  };
  for (const Refusal& c : cases) {
    EXPECT_THAT(Parse(c.type, c.changes), FailsWith(kUnimplemented, c.message)) << c.changes;
    EXPECT_THAT(Parse(c.type, c.changes), FailsWith(kUnimplemented, "config.json: "));
  }
}

TEST(ModelConfig, RejectsFieldsByNameAndValue) {
  const Json llama3 = {
      {"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}};
  const std::vector<Refusal> cases = {
      {"llama", {{"model_type", nullptr}}, "the field model_type is missing"},
      {"llama",
       {{"model_type", nullptr}, {"architectures", {"LlamaForCausalLM"}}},
       "the field model_type is missing"},
      {"llama", {{"vocab_size", nullptr}}, "the field vocab_size is missing"},
      {"llama", {{"hidden_size", "64"}}, "hidden_size is \"64\"; an integer"},
      {"llama", {{"hidden_size", 64.5}}, "hidden_size is 64.5"},
      {"llama", {{"num_hidden_layers", 0}}, "num_hidden_layers is 0"},
      {"llama", {{"num_hidden_layers", -1}}, "num_hidden_layers is -1"},
      {"llama", {{"vocab_size", 18446744073709551615u}}, "vocab_size is 18446744073709551615"},
      {"llama", {{"num_key_value_heads", 3}}, "4 is not a multiple of num_key_value_heads 3"},
      {"llama", {{"hidden_size", 66}}, "hidden_size 66 is not a multiple"},
      {"llama", {{"head_dim", 15}}, "head_dim 15 is odd"},
      {"llama", {{"intermediate_size", 97}}, "intermediate_size 97 is odd"},
      {"qwen3", {{"hidden_size", 65}}, "hidden_size 65 is odd"},
      {"llama", {{"rms_norm_eps", 0}}, "rms_norm_eps is 0"},
      {"llama", {{"rope_theta", "big"}}, "rope_theta is \"big\""},
      {"llama", {{"tie_word_embeddings", 1}}, "tie_word_embeddings is 1; true or false"},
      {"llama", {{"torch_dtype", "int8"}}, "torch_dtype is 'int8'"},
      {"llama", {{"eos_token_id", 320}}, "eos_token_id has 320"},
      {"llama", {{"eos_token_id", {1, "x"}}}, "eos_token_id has \"x\""},
      {"llama", {{"bos_token_id", 320}}, "bos_token_id is 320"},
      {"llama", {{"rope_scaling", 2}}, "rope_scaling is 2"},
      {"llama", {{"rope_scaling", {{"rope_type", "llama3"}}}}, "the field factor is missing"},
      {"llama", {{"rope_scaling", llama3}}, "high_freq_factor 4 is not above"},
      {"llama", {{"rope_scaling", {{"rope_type", "linear"}}}}, "the field factor is missing"},
      {"phi3", {{"partial_rotary_factor", 1.5}}, "partial_rotary_factor is 1.5"},
      {"phi3", {{"partial_rotary_factor", 0.2}}, "rotates 3 of 16 elements of a head"},
      {"phi3",
       {{"rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1, 2}}}}},
       "short_factor needs a list of 8 numbers above 0"},
      {"gemma2", {{"layer_types", {"full_attention"}}}, "layer_types needs a list of 2 texts"},
      {"gemma2", {{"sliding_window", 0}}, "sliding_window is 0"},
      {"gemma2", {{"attn_logit_softcapping", -1}}, "attn_logit_softcapping is -1"},
      {"smollm3", {{"no_rope_layers", {1}}}, "no_rope_layers needs a list of 2 numbers"},
      {"smollm3", {{"no_rope_layers", {1, 2}}}, "no_rope_layers has 2"},
  };
  for (const Refusal& c : cases) {
    EXPECT_THAT(Parse(c.type, c.changes), FailsWith(kInvalid, c.message)) << c.changes;
  }
  EXPECT_THAT(ParseModelConfig("{", "here"), FailsWith(kInvalid, "here: not a JSON object"));
  EXPECT_THAT(ParseModelConfig("[]", "here"), FailsWith(kInvalid, "here: not a JSON object"));
}

TEST(ModelConfig, MergesEndTokensOfBothFiles) {
  const TempDir dir;
  std::ofstream(dir / "config.json") << Config("qwen2", {{"eos_token_id", {7, 5}}});
  EXPECT_THAT(ReadModelConfig(dir.path())->eos_token_ids, ElementsAre(7, 5));
  std::ofstream(dir / "generation_config.json") << R"({"eos_token_id": [5, 9]})";
  EXPECT_THAT(ReadModelConfig(dir.path())->eos_token_ids, ElementsAre(7, 5, 9));
  std::ofstream(dir / "generation_config.json") << R"({"eos_token_id": 999})";
  EXPECT_THAT(ReadModelConfig(dir.path()), FailsWith(kInvalid, "generation_config.json: "));
}

TEST(ModelConfig, FollowsTransformersWhereEndTokensAreAbsent) {
  Json json = Json::parse(Config("llama"));
  json.erase("eos_token_id");
  EXPECT_THAT(ParseModelConfig(json.dump(), "c")->eos_token_ids, ElementsAre(2));
  json["eos_token_id"] = nullptr;
  EXPECT_THAT(ParseModelConfig(json.dump(), "c")->eos_token_ids, IsEmpty());
  json["model_type"] = "qwen3";
  EXPECT_THAT(ParseModelConfig(json.dump(), "c")->eos_token_ids, IsEmpty());
}

TEST(ModelConfig, SaysWhatAModelDirectoryHolds) {
  const TempDir dir;
  EXPECT_THAT(ReadModelConfig(dir.path()),
              FailsWith(absl::StatusCode::kNotFound, "holds config.json, model.safetensors"));
}

TEST(ModelConfig, SurvivesBeingWrittenAndRead) {
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const std::vector<double> factors = {1, 1.5, 2, 2.5};
  const Json longrope = {{"rope_type", "longrope"},
                         {"short_factor", factors},
                         {"long_factor", factors},
                         {"original_max_position_embeddings", 256}};
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  for (const auto& [type, changes] : std::vector<std::pair<std::string, Json>>{
           {"llama", {{"rope_scaling", scaling}, {"mlp_bias", true}, {"eos_token_id", {2, 3}}}},
           {"qwen2", {{"tie_word_embeddings", true}, {"rope_theta", 1e6}}},
           {"qwen3", {{"head_dim", 24}, {"attention_bias", true}}},
           {"qwen2", {{"use_sliding_window", true}, {"max_window_layers", 1}}},
           {"mistral", {{"sliding_window", 96}, {"rope_scaling", yarn}}},
           {"gemma2", {{"head_dim", 24}, {"attn_logit_softcapping", nullptr}}},
           {"gemma3_text", {{"head_dim", 24}, {"rope_local_base_freq", 5000.0}}},
           {"phi3", {{"rope_scaling", longrope}, {"partial_rotary_factor", 0.5}}},
           {"olmo2", Json::object()},
           {"smollm3", {{"no_rope_layers", {0, 1}}, {"eos_token_id", 2}}},
           {"glm4", {{"head_dim", 24}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}}}}) {
    const auto config = Parse(type, changes);
    ASSERT_THAT(config, IsOk());
    const std::string written = ModelConfigToJson(*config, DType::kBF16);
    const auto again = ParseModelConfig(written, "again");
    ASSERT_THAT(again, IsOk());
    EXPECT_EQ(ModelConfigToJson(*again, DType::kBF16), written);
    EXPECT_EQ(again->checkpoint_dtype, DType::kBF16);
    EXPECT_EQ(again->head_dim, config->head_dim);
    EXPECT_EQ(again->eos_token_ids, config->eos_token_ids);
    EXPECT_EQ(again->bos_token_id, config->bos_token_id);
    EXPECT_EQ(again->mlp_bias, config->mlp_bias);
    EXPECT_EQ(again->attention_o_bias, config->attention_o_bias);
    EXPECT_EQ(again->tie_word_embeddings, config->tie_word_embeddings);
    EXPECT_EQ(again->rope, config->rope);
    EXPECT_EQ(again->sliding_rope, config->sliding_rope);
    EXPECT_EQ(again->layer_forms, config->layer_forms);
    EXPECT_EQ(again->attention_softcap, config->attention_softcap);
    EXPECT_EQ(again->attention_qkv_bias, config->attention_qkv_bias);
    EXPECT_EQ(again->max_position_embeddings, config->max_position_embeddings);
  }
}

}  // namespace
}  // namespace tandem
