// The tensors of a model and its rotary frequencies, derived from its configuration.
#include <cmath>
#include <map>
#include <numbers>
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
  const int64_t hidden = config.hidden_size;
  const int64_t queries = config.num_heads * config.head_dim;
  const int64_t keys = config.num_kv_heads * config.head_dim;
  const auto vector = [&](const char* name, int64_t size) {
    specs.push_back({absl::StrCat(layer, name), dtype, {size}});
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    specs.push_back({absl::StrCat(layer, name, ".weight"), dtype, {out, in}});
    if (bias) specs.push_back({absl::StrCat(layer, name, ".bias"), dtype, {out}});
  };
  vector("input_layernorm.weight", hidden);
  linear("self_attn.q_proj", queries, hidden, config.attention_qkv_bias);
  linear("self_attn.k_proj", keys, hidden, config.attention_qkv_bias);
  linear("self_attn.v_proj", keys, hidden, config.attention_qkv_bias);
  if (config.qk_norm) {
    vector("self_attn.q_norm.weight", config.head_dim);
    vector("self_attn.k_norm.weight", config.head_dim);
  }
  linear("self_attn.o_proj", hidden, queries, config.attention_o_bias);
  vector("post_attention_layernorm.weight", hidden);
  linear("mlp.gate_proj", config.intermediate_size, hidden, config.mlp_bias);
  linear("mlp.up_proj", config.intermediate_size, hidden, config.mlp_bias);
  linear("mlp.down_proj", hidden, config.intermediate_size, config.mlp_bias);
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

// theta^(-2 i / D), as in RoFormer (Su et al. 2021). Llama 3's scaling divides low frequencies,
// whose wavelength exceeds the original context, by `factor`, keeps high ones, and interpolates
// between them. Every operation is in the same precision and order as in transformers, since an
// angle is the frequency times a position of up to 10^5, which magnifies differences in the last
// bits.
std::vector<float> RotaryInverseFrequencies(const ModelConfig& config) {
  const auto dim = static_cast<float>(config.head_dim);
  const Llama3RopeScaling& scaling = config.llama3_scaling;
  const auto context = static_cast<double>(scaling.original_max_position_embeddings);
  const auto low_wavelength = static_cast<float>(context / scaling.low_freq_factor);
  const auto high_wavelength = static_cast<float>(context / scaling.high_freq_factor);
  const auto factor = static_cast<float>(scaling.factor);

  std::vector<float> frequencies(config.head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    float f =
        1.0F / std::pow(static_cast<float>(config.rope_theta), static_cast<float>(2 * i) / dim);
    if (config.has_llama3_scaling) {
      const float wavelength = static_cast<float>(2 * std::numbers::pi) / f;
      if (wavelength > low_wavelength) {
        f = f / factor;
      } else if (wavelength >= high_wavelength) {
        const float smooth = (static_cast<float>(context) / wavelength -
                              static_cast<float>(scaling.low_freq_factor)) /
                             static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
        f = (1.0F - smooth) * f / factor + smooth * f;
      }
    }
    frequencies[i] = f;
  }
  return frequencies;
}

}  // namespace tandem
