// The tensors of a model and the numbers of its forward that follow from its configuration.
#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/model_config.h"

namespace tandem {
namespace {

constexpr char kHead[] = "lm_head.weight";
constexpr size_t kNamedProblems = 5;

// Tensors that some older checkpoints contain although the configuration determines them.
bool IsDerived(const ModelConfig& config, const std::string& name) {
  return (config.tie_word_embeddings && name == kHead) ||
         absl::EndsWith(name, "rotary_emb.inv_freq");
}

void AppendLayer(const ModelConfig& config, DType dtype, const std::string& layer,
                 std::vector<TensorSpec>& specs) {
  const int64_t hidden = config.hidden_size, inner = config.intermediate_size;
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const auto norm = [&](std::string_view name, int64_t size) {
    if (name.empty()) return;
    specs.push_back({absl::StrCat(layer, std::string(name), ".weight"), dtype, {size}});
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    specs.push_back({absl::StrCat(layer, name, ".weight"), dtype, {out, in}});
    if (bias) specs.push_back({absl::StrCat(layer, name, ".bias"), dtype, {out}});
  };
  norm(config.norms.attention, hidden);
  if (config.fused_qkv) {
    linear("self_attn.qkv_proj", queries + 2 * keys, hidden, config.attention_qkv_bias);
  } else {
    linear("self_attn.q_proj", queries, hidden, config.attention_qkv_bias);
    linear("self_attn.k_proj", keys, hidden, config.attention_qkv_bias);
    linear("self_attn.v_proj", keys, hidden, config.attention_qkv_bias);
  }
  if (config.qk_norm != QkNorm::kNone) {
    const bool per_head = config.qk_norm == QkNorm::kPerHead;
    norm("self_attn.q_norm", per_head ? config.head_dim : queries);
    norm("self_attn.k_norm", per_head ? config.head_dim : keys);
  }
  linear("self_attn.o_proj", hidden, queries, config.attention_o_bias);
  norm(config.norms.attention_out, hidden);
  norm(config.norms.mlp, hidden);
  if (config.fused_gate_up) {
    linear("mlp.gate_up_proj", 2 * inner, hidden, config.mlp_bias);
  } else {
    linear("mlp.gate_proj", inner, hidden, config.mlp_bias);
    linear("mlp.up_proj", inner, hidden, config.mlp_bias);
  }
  linear("mlp.down_proj", hidden, inner, config.mlp_bias);
  norm(config.norms.mlp_out, hidden);
}

// The first trait that Llama, Qwen2 and Qwen3 do not have; empty: there is none.
std::string_view UnusualTrait(const ModelConfig& config) {
  const LayerNormNames plain;
  const bool has_window = std::ranges::any_of(
      config.layer_forms, [](const LayerForm& form) { return form.window > 0; });
  const bool has_nope = std::ranges::any_of(config.layer_forms,
                                            [](const LayerForm& form) { return !form.has_rotary; });
  if (has_window) return "a sliding window";
  if (has_nope) return "layers without rotary embedding";
  if (config.attention_softcap > 0) return "capped attention scores";
  if (config.logit_softcap > 0) return "capped logits";
  if (config.norms.attention != plain.attention || config.norms.mlp != plain.mlp ||
      !config.norms.attention_out.empty() || !config.norms.mlp_out.empty()) {
    return "norms in other places";
  }
  if (config.qk_norm == QkNorm::kPerProjection) return "norms over whole projections";
  if (config.norm_offset != 0) return "norm weights with an offset";
  if (config.embedding_scale != 1) return "scaled embeddings";
  if (config.query_pre_attn_scalar != 0) return "another attention scale";
  if (config.activation != Activation::kSilu) return "another activation than silu";
  if (config.fused_qkv || config.fused_gate_up) return "fused projections";
  if (config.rotated_elements() != config.head_dim || config.interleaved_rotary) {
    return "a rotary embedding of a part of the head";
  }
  if (config.rope.attention_factor != 1) return "a scaled rotary embedding";
  return {};
}

}  // namespace

std::vector<TensorSpec> ModelTensors(const ModelConfig& config, DType dtype) {
  std::vector<TensorSpec> specs;
  specs.push_back({"model.embed_tokens.weight", dtype, {config.vocab_size, config.hidden_size}});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    AppendLayer(config, dtype, absl::StrCat("model.layers.", layer, "."), specs);
  }
  specs.push_back({"model.norm.weight", dtype, {config.hidden_size}});
  if (!config.tie_word_embeddings) {
    specs.push_back({kHead, dtype, {config.vocab_size, config.hidden_size}});
  }
  return specs;
}

absl::StatusOr<std::vector<HostTensor>> MatchModelTensors(const ModelConfig& config,
                                                          std::vector<HostTensor> tensors) {
  std::vector<std::string> problems;
  std::map<std::string, HostTensor> given;
  for (HostTensor& tensor : tensors) {
    std::string name = tensor.spec.name;
    if (IsDerived(config, name)) continue;
    if (!given.emplace(name, std::move(tensor)).second) {
      problems.push_back(absl::StrCat("'", name, "' is given twice"));
    }
  }
  std::vector<HostTensor> matched;
  for (const TensorSpec& want : ModelTensors(config, DType::kF32)) {
    auto node = given.extract(want.name);
    if (node.empty()) {
      problems.push_back(absl::StrCat("'", want.name, "' is missing"));
      continue;
    }
    const TensorSpec& have = node.mapped().spec;
    if (have.shape != want.shape || !IsFloat(have.dtype)) {
      problems.push_back(absl::StrCat(have.ToString(), " should be a float tensor [",
                                      absl::StrJoin(want.shape, ", "), "]"));
      continue;
    }
    matched.push_back(std::move(node.mapped()));
  }
  for (const auto& [name, tensor] : given) {
    problems.push_back(absl::StrCat("'", name, "' is not part of the model"));
  }
  if (problems.empty()) return matched;
  const size_t count = problems.size();
  problems.resize(std::min(count, kNamedProblems));
  return InvalidArgument("the tensors do not fit config.json (", config.model_type, "), ", count,
                         " problem(s): ", absl::StrJoin(problems, "; "),
                         count > kNamedProblems ? "; ..." : "");
}

float ModelConfig::attention_scale() const {
  const int64_t scalar = query_pre_attn_scalar > 0 ? query_pre_attn_scalar : head_dim;
  return 1.0F / std::sqrt(static_cast<float>(scalar));
}

absl::Status CheckPlainDecoder(const ModelConfig& config, std::string_view feature) {
  const std::string_view trait = UnusualTrait(config);
  if (trait.empty()) return absl::OkStatus();
  return Unimplemented(feature, " does not take ", trait, " (model_type ", config.model_type,
                       "); it takes llama, qwen2 and qwen3 with full attention");
}

std::vector<RotaryEmbedding> RotaryEmbeddings(const ModelConfig& config) {
  std::vector<RotaryEmbedding> embeddings = {MakeRotaryEmbedding(config.rope, config.head_dim)};
  if (config.sliding_rope.has_value()) {
    embeddings.push_back(MakeRotaryEmbedding(*config.sliding_rope, config.head_dim));
  }
  return embeddings;
}

}  // namespace tandem
