// Writes a ModelConfig as config.json.
#include <algorithm>
#include <string>

#include "common/model/config/config_fields.h"
#include "common/model/config/model_family.h"
#include "common/model/config/rope_fields.h"
#include "common/model/model_config.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::ordered_json;

Json IdOrNull(int32_t id) { return id < 0 ? Json() : Json(id); }

Json CapOrNull(float cap) { return cap == 0 ? Json() : Json(cap); }

void WriteRope(const ModelConfig& config, const ModelFamily& family, Json& json) {
  json["rope_theta"] = config.rope.theta;
  json["rope_scaling"] = RopeScalingJson(config.rope);
  if (config.rope.partial_rotary_factor != 1 || family.partial_rotary_factor != 1) {
    json["partial_rotary_factor"] = config.rope.partial_rotary_factor;
  }
  if (config.sliding_rope.has_value()) {
    json["rope_local_base_freq"] = config.sliding_rope->theta;
  }
  if (config.rope.type != RopeType::kLongRope) return;
  json["max_position_embeddings"] = config.rope.stated_max_position_embeddings;
  json["original_max_position_embeddings"] = config.rope.original_max_position_embeddings;
}

void WriteLayerForms(const ModelConfig& config, const ModelFamily& family, Json& json) {
  const auto windowed = std::ranges::find_if(config.layer_forms,
                                             [](const LayerForm& form) { return form.window > 0; });
  const bool has_window = windowed != config.layer_forms.end();
  if (family.window == WindowRule::kFlag || family.window == WindowRule::kNoRope) {
    json["use_sliding_window"] = has_window;
  }
  if (family.window != WindowRule::kNone) {
    json["sliding_window"] = has_window ? Json(windowed->window) : Json();
  }
  const bool by_layer = family.window == WindowRule::kPattern || has_window;
  if (by_layer && family.window != WindowRule::kEveryLayer) {
    Json types = Json::array();
    for (int64_t i = 0; i < config.num_layers; ++i) {
      types.push_back(config.layer(i).window > 0 ? "sliding_attention" : "full_attention");
    }
    json["layer_types"] = types;
  }
  if (family.window != WindowRule::kNoRope) return;
  Json rotary = Json::array();
  for (int64_t i = 0; i < config.num_layers; ++i) {
    rotary.push_back(config.layer(i).has_rotary ? 1 : 0);
  }
  json["no_rope_layers"] = rotary;
}

void WriteVariants(const ModelConfig& config, const ModelFamily& family, Json& json) {
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  if (family.attention_bias == BiasRule::kField) {
    json["attention_bias"] = config.attention_qkv_bias;
  }
  if (family.has_mlp_bias) json["mlp_bias"] = config.mlp_bias;
  if (!family.is_gemma) return;
  json["query_pre_attn_scalar"] = config.query_pre_attn_scalar;
  json["attn_logit_softcapping"] = CapOrNull(config.attention_softcap);
  json["final_logit_softcapping"] = CapOrNull(config.logit_softcap);
}

}  // namespace

std::string ModelConfigToJson(const ModelConfig& config, DType dtype) {
  const ModelFamily* const known = FindModelFamily(config.model_type);
  const ModelFamily& family = known != nullptr ? *known : kModelFamilies.front();
  const bool is_silu = config.activation == Activation::kSilu;
  Json json;
  if (known != nullptr) json["architectures"] = {std::string(family.architecture)};
  json["model_type"] = config.model_type;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim;
  json[std::string(family.activation_field)] = is_silu ? "silu" : "gelu_pytorch_tanh";
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  WriteRope(config, family, json);
  WriteLayerForms(config, family, json);
  WriteVariants(config, family, json);
  json["bos_token_id"] = IdOrNull(config.bos_token_id);
  json["pad_token_id"] = IdOrNull(config.pad_token_id);
  json["eos_token_id"] = nullptr;
  if (config.eos_token_ids.size() == 1) {
    json["eos_token_id"] = config.eos_token_ids.front();
  } else if (config.eos_token_ids.size() > 1) {
    json["eos_token_id"] = config.eos_token_ids;
  }
  for (const auto& [name, known_dtype] : kConfigDTypes) {
    if (known_dtype == dtype) json["torch_dtype"] = std::string(name);
  }
  return json.dump(2) + "\n";
}

}  // namespace tandem
