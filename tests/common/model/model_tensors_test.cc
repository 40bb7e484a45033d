#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/model/model_config.h"
#include "tests/support/status_matchers.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using testing::FailsWith;
using testing::IsOk;

constexpr auto kInvalidTensors = absl::StatusCode::kInvalidArgument;

ModelConfig Small() {
  ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 10;
  config.hidden_size = 6;
  config.intermediate_size = 8;
  config.num_layers = 1;
  config.num_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.tie_word_embeddings = true;
  return config;
}

std::vector<std::string> Printed(const ModelConfig& config) {
  std::vector<std::string> lines;
  for (const TensorSpec& spec : ModelTensors(config, DType::kBF16))
    lines.push_back(spec.ToString());
  return lines;
}

std::vector<HostTensor> TensorsOf(const ModelConfig& config) {
  std::vector<HostTensor> tensors;
  for (const TensorSpec& spec : ModelTensors(config, DType::kF32)) {
    tensors.push_back({.spec = spec, .bytes = {}, .owner = nullptr});
  }
  return tensors;
}

TEST(ModelTensors, ListsALlamaLayerInHuggingFaceNames) {
  const std::string layer = "model.layers.0.";
  EXPECT_THAT(Printed(Small()), ElementsAre("model.embed_tokens.weight BF16 [10, 6]",
                                            layer + "input_layernorm.weight BF16 [6]",
                                            layer + "self_attn.q_proj.weight BF16 [12, 6]",
                                            layer + "self_attn.k_proj.weight BF16 [4, 6]",
                                            layer + "self_attn.v_proj.weight BF16 [4, 6]",
                                            layer + "self_attn.o_proj.weight BF16 [6, 12]",
                                            layer + "post_attention_layernorm.weight BF16 [6]",
                                            layer + "mlp.gate_proj.weight BF16 [8, 6]",
                                            layer + "mlp.up_proj.weight BF16 [8, 6]",
                                            layer + "mlp.down_proj.weight BF16 [6, 8]",
                                            "model.norm.weight BF16 [6]"));
}

TEST(ModelTensors, AddsBiasesNormsAndHeadWhereTheConfigurationHasThem) {
  ModelConfig config = Small();
  config.tie_word_embeddings = false;
  config.attention_qkv_bias = config.attention_o_bias = config.mlp_bias = true;
  config.qk_norm = QkNorm::kPerHead;
  const std::vector<std::string> lines = Printed(config);
  for (const char* const line :
       {"model.layers.0.self_attn.q_proj.bias BF16 [12]",
        "model.layers.0.self_attn.v_proj.bias BF16 [4]",
        "model.layers.0.self_attn.o_proj.bias BF16 [6]",
        "model.layers.0.self_attn.q_norm.weight BF16 [4]",
        "model.layers.0.self_attn.k_norm.weight BF16 [4]",
        "model.layers.0.mlp.gate_proj.bias BF16 [8]", "model.layers.0.mlp.down_proj.bias BF16 [6]",
        "lm_head.weight BF16 [10, 6]"}) {
    EXPECT_THAT(lines, ::testing::Contains(line));
  }
  EXPECT_EQ(lines.size(), 11u + 3 + 1 + 3 + 2 + 1);
}

TEST(MatchModelTensors, PutsTensorsInOrderWhateverOrderTheyCameIn) {
  std::vector<HostTensor> tensors = TensorsOf(Small());
  std::reverse(tensors.begin(), tensors.end());
  tensors[0].spec.dtype = DType::kF16;  // model.norm.weight
  const auto matched = MatchModelTensors(Small(), tensors);
  ASSERT_THAT(matched, IsOk());
  EXPECT_EQ(matched->front().spec.name, "model.embed_tokens.weight");
  EXPECT_EQ(matched->back().spec.name, "model.norm.weight");
  EXPECT_EQ(matched->back().spec.dtype, DType::kF16);
}

TEST(MatchModelTensors, DropsATiedHeadAndRotaryBuffers) {
  std::vector<HostTensor> tensors = TensorsOf(Small());
  const size_t count = tensors.size();
  tensors.push_back({.spec = {"lm_head.weight", DType::kF32, {10, 6}}, .bytes = {}, .owner = {}});
  tensors.push_back({.spec = {"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {2}},
                     .bytes = {},
                     .owner = {}});
  const auto matched = MatchModelTensors(Small(), tensors);
  ASSERT_THAT(matched, IsOk());
  EXPECT_EQ(matched->size(), count);
}

TEST(MatchModelTensors, NamesWhatIsMissingUnknownOrOfAnotherShape) {
  std::vector<HostTensor> tensors = TensorsOf(Small());
  tensors.pop_back();  // model.norm.weight
  tensors[1].spec.shape = {7};
  tensors[2].spec.dtype = DType::kI32;
  tensors.push_back({.spec = {"score.weight", DType::kF32, {1}}, .bytes = {}, .owner = {}});
  tensors.push_back(tensors[0]);
  const auto matched = MatchModelTensors(Small(), tensors);
  EXPECT_THAT(matched, FailsWith(kInvalidTensors, "5 problem(s)"));
  EXPECT_THAT(matched, FailsWith(kInvalidTensors, "'model.norm.weight' is missing"));
  EXPECT_THAT(matched,
              FailsWith(kInvalidTensors, "input_layernorm.weight F32 [7] should be a float"));
  EXPECT_THAT(matched, FailsWith(kInvalidTensors, "q_proj.weight I32 [12, 6] should be a float"));
  EXPECT_THAT(matched, FailsWith(kInvalidTensors, "'score.weight' is not part of the model"));
  EXPECT_THAT(matched, FailsWith(kInvalidTensors, "'model.embed_tokens.weight' is given twice"));
}

TEST(MatchModelTensors, NeedsTheHeadOfAnUntiedModel) {
  ModelConfig untied = Small();
  untied.tie_word_embeddings = false;
  EXPECT_THAT(MatchModelTensors(untied, TensorsOf(Small())),
              FailsWith(kInvalidTensors, "'lm_head.weight' is missing"));
}

void ExpectNear(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 3e-7F * expected[i]) << i;  // two units in the last place
  }
}

// transformers 5.23: Qwen2RotaryEmbedding(Qwen2Config(hidden_size=48, num_attention_heads=4,
//   rope_parameters={"rope_type": "default", "rope_theta": 1e6})).inv_freq
TEST(RotaryEmbedding, AreThoseOfTransformers) {
  ModelConfig config = Small();
  config.head_dim = 12;
  config.rope.theta = 1e6;
  ExpectNear(
      MakeRotaryEmbedding(config.rope, config.head_dim).inverse_frequencies,
      {1.0F, 0.099999994F, 0.00999999885F, 0.00100000005F, 9.99999684e-05F, 1.00000034e-05F});
}

// transformers 5.23: ROPE_INIT_FUNCTIONS["llama3"](LlamaConfig(hidden_size=64,
//   num_attention_heads=4, rope_parameters={"rope_type": "llama3", "rope_theta": 1e4,
//   "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
//   "original_max_position_embeddings": 64}), "cpu")
TEST(RotaryEmbedding, WithLlama3ScalingAreThoseOfTransformers) {
  ModelConfig config = Small();
  config.head_dim = 16;
  config.rope.type = RopeType::kLlama3;
  config.rope.factor = 8;
  config.rope.high_freq_factor = 4;
  config.rope.original_max_position_embeddings = 64;
  ExpectNear(MakeRotaryEmbedding(config.rope, config.head_dim).inverse_frequencies,
             {1.0F, 0.244384587F, 0.0130422562F, 0.00395284733F, 0.00124999997F, 0.000395284733F,
              0.000125000006F, 3.95284733e-05F});
}

}  // namespace
}  // namespace tandem
