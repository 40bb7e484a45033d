#include "common/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/config/config_fields.h"
#include "common/model/config/model_family.h"
#include "common/model/config/rope_fields.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxLayers = 100'000;

// The family of the model, or null with an error in `fields`.
const ModelFamily* ReadFamily(ConfigFields& fields) {
  const Json* const architectures = fields.Find("architectures");
  const auto is_known = [&](const ModelFamily& known) {
    return *architectures == known.architecture ||
           *architectures == Json::array({known.architecture});
  };
  if (fields.Find("model_type") == nullptr && architectures != nullptr &&
      std::ranges::none_of(kModelFamilies, is_known)) {
    fields.Refuse(
        "architectures ", architectures->dump(),
        ", and no model_type: the model is not supported; supported: ", SupportedFamilies());
    return nullptr;
  }
  const std::string type = fields.Text("model_type", std::nullopt);
  if (!fields.status().ok()) return nullptr;
  const ModelFamily* const family = FindModelFamily(type);
  if (family == nullptr) {
    fields.Refuse(
        "model_type '", type, "' is not supported",
        type == "gemma3" ? " (it has an image encoder; its text-only kind is gemma3_text)" : "",
        "; supported: ", SupportedFamilies());
    return nullptr;
  }
  if (architectures != nullptr) {
    if (!architectures->is_array() || architectures->size() != 1 ||
        (*architectures)[0] != family->architecture) {
      fields.Refuse("architectures ", architectures->dump(), " with model_type '", type,
                    "' is not supported; supported: ", SupportedFamilies());
    }
  }
  return family;
}

void RefuseUnsupported(ConfigFields& fields, const ModelFamily& family) {
  const char* const expected =
      family.activation == Activation::kSilu ? "silu" : "gelu_pytorch_tanh";
  const std::string activation =
      fields.Text(std::string(family.activation_field).c_str(), expected);
  if (activation != expected) {
    fields.Refuse(family.activation_field, " '", activation,
                  "' is not supported; supported: ", expected);
  }
  for (const char* const key : {"quantization_config", "compression_config"}) {
    const auto* const quantisation = fields.Find(key);
    if (quantisation == nullptr) continue;
    const bool named = quantisation->is_object() && quantisation->contains("quant_method") &&
                       quantisation->at("quant_method").is_string();
    fields.Refuse(
        key, ": the checkpoint is already quantised",
        named ? " (" + quantisation->at("quant_method").get<std::string>() + ")" : "",
        "; use the float checkpoint (float32, bfloat16 or float16), and quantise it on the "
        "rollout server: server.engine.weights");
  }
  for (const char* const key : {"num_experts", "num_local_experts"}) {
    if (fields.Integer(key, 0, 0, kMaxConfigSize) > 0) {
      fields.Refuse(key, ": mixture of experts is not supported; supported: ", SupportedFamilies());
    }
  }
  if (fields.Flag("use_bidirectional_attention", false)) {
    fields.Refuse("use_bidirectional_attention true is not supported; attention is causal");
  }
  if (fields.Integer("pretraining_tp", 1, 0, kMaxConfigSize) > 1) {
    fields.Refuse("pretraining_tp other than 1 is not supported");
  }
  if (fields.Flag("rope_interleaved", family.interleaved_rotary) != family.interleaved_rotary) {
    fields.Refuse("rope_interleaved true is not supported; pairs are (i, i + head_dim / 2)");
  }
}

void ReadHeadDim(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  if (family.head_dim > 0) {
    config.head_dim = fields.Integer("head_dim", family.head_dim, 1, 1 << 20);
  } else if (fields.Find("head_dim") != nullptr) {
    config.head_dim = fields.Integer("head_dim", std::nullopt, 1, 1 << 20);
  } else if (config.hidden_size % config.num_heads != 0) {
    fields.Reject("hidden_size ", config.hidden_size, " is not a multiple of num_attention_heads ",
                  config.num_heads, ", and there is no head_dim");
  } else {
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.head_dim % 2 != 0) {
    fields.Reject("head_dim ", config.head_dim, " is odd; rotary embedding needs pairs");
  }
}

void ReadShape(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  const auto size = [&](const char* key) {
    return fields.Integer(key, std::nullopt, 1, kMaxConfigSize);
  };
  config.vocab_size =
      fields.Integer("vocab_size", std::nullopt, 1, std::numeric_limits<int32_t>::max());
  config.hidden_size = size("hidden_size");
  config.intermediate_size = size("intermediate_size");
  config.num_layers = fields.Integer("num_hidden_layers", std::nullopt, 1, kMaxLayers);
  config.num_heads = fields.Integer("num_attention_heads", std::nullopt, 1, 1 << 20);
  // An explicit null means one for each head.
  const bool says_kv_heads = fields.Has("num_key_value_heads");
  const int64_t kv_heads =
      says_kv_heads || family.num_kv_heads == 0 ? config.num_heads : family.num_kv_heads;
  config.num_kv_heads = fields.Integer("num_key_value_heads", kv_heads, 1, 1 << 20);
  config.max_position_embeddings = size("max_position_embeddings");
  if (!fields.status().ok()) return;

  if (config.num_heads % config.num_kv_heads != 0) {
    fields.Reject("num_attention_heads ", config.num_heads,
                  " is not a multiple of num_key_value_heads ", config.num_kv_heads);
  }
  ReadHeadDim(fields, family, config);
  // The input of every linear layer must have an even size, because bf16 instructions take elements
  // in pairs.
  for (const auto& [name, size] : {std::pair("hidden_size", config.hidden_size),
                                   std::pair("intermediate_size", config.intermediate_size)}) {
    if (size % 2 != 0)
      fields.Reject(name, " ", size, " is odd; linear layers take inputs in pairs");
  }
}

void ReadCheckpointDType(ConfigFields& fields, ModelConfig& config) {
  const char* const key = fields.Find("dtype") != nullptr ? "dtype" : "torch_dtype";
  const std::string text = fields.Text(key, "float32");
  const auto* const known =
      std::ranges::find(kConfigDTypes, std::string(absl::StripPrefix(text, "torch.")),
                        &std::pair<std::string_view, DType>::first);
  if (known == kConfigDTypes.end()) {
    fields.Reject(key, " is '", text, "'; one of float32, bfloat16, float16, float64 is needed");
    return;
  }
  config.checkpoint_dtype = known->second;
}

void ReadVariants(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  config.rms_norm_eps = fields.Positive("rms_norm_eps", family.rms_norm_eps);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", family.tied);
  const bool asked =
      family.attention_bias == BiasRule::kField && fields.Flag("attention_bias", family.biased);
  config.attention_qkv_bias = family.attention_bias == BiasRule::kAlways || asked;
  config.attention_o_bias = asked && family.o_bias;
  config.mlp_bias = family.has_mlp_bias && fields.Flag("mlp_bias", false);
  config.fused_qkv = family.fused_qkv;
  config.fused_gate_up = family.fused_gate_up;
  config.qk_norm = family.qk_norm;
  config.norms = family.norms;
  config.activation = family.activation;
  config.interleaved_rotary = family.interleaved_rotary;
  if (family.is_gemma) {
    config.norm_offset = 1;
    config.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
    config.query_pre_attn_scalar = fields.Integer("query_pre_attn_scalar", 256, 1, kMaxConfigSize);
    const auto cap = [&](const char* key, double fallback) {
      // An explicit null switches a cap off.
      if (fields.Has(key) && fields.Find(key) == nullptr) return 0.0F;
      return fallback == 0 && fields.Find(key) == nullptr
                 ? 0.0F
                 : static_cast<float>(fields.Positive(key, fallback));
    };
    config.attention_softcap = cap("attn_logit_softcapping", family.attention_softcap);
    config.logit_softcap = cap("final_logit_softcapping", family.logit_softcap);
  }
  ReadCheckpointDType(fields, config);
}

// Which layers have a rotary embedding (SmolLM3); a list may be longer than the model.
std::vector<bool> ReadRotaryLayers(ConfigFields& fields, const ModelFamily& family,
                                   int64_t num_layers) {
  std::vector<bool> rotary(static_cast<size_t>(num_layers), true);
  if (family.window != WindowRule::kNoRope) return rotary;
  const Json* const list = fields.Find("no_rope_layers");
  if (list == nullptr) {
    const int64_t interval = fields.Integer("no_rope_layer_interval", 4, 1, kMaxLayers);
    for (int64_t i = 0; i < num_layers; ++i) rotary[i] = (i + 1) % interval != 0;
    return rotary;
  }
  if (!list->is_array() || list->size() < rotary.size()) {
    fields.Reject("no_rope_layers needs a list of ", num_layers, " numbers 0 or 1");
    return rotary;
  }
  for (size_t i = 0; i < rotary.size(); ++i) {
    const Json& one = (*list)[i];
    if (one != 0 && one != 1)
      fields.Reject("no_rope_layers has ", one.dump(), "; 0 or 1 is needed");
    rotary[i] = one == 1;
  }
  return rotary;
}

// The window of the layers that have one; 0: none has.
int64_t ReadWindow(ConfigFields& fields, const ModelFamily& family) {
  const bool by_flag = family.window == WindowRule::kFlag || family.window == WindowRule::kNoRope;
  if (family.window == WindowRule::kNone) {
    if (fields.Find("sliding_window") != nullptr) {
      fields.Refuse("sliding_window: sliding window attention is not supported for model_type '",
                    family.model_type, "'; full attention is");
    }
    return 0;
  }
  if (by_flag && !fields.Flag("use_sliding_window", false)) return 0;
  if (fields.Has("sliding_window") && fields.Find("sliding_window") == nullptr) return 0;
  if (family.default_window == 0 && fields.Find("sliding_window") == nullptr) return 0;
  return fields.Integer("sliding_window", family.default_window, 1, kMaxConfigSize);
}

// Whether layer `index` slides where config.json has no "layer_types".
bool SlidesByRule(const ModelFamily& family, int64_t index, int64_t parameter, bool has_rotary) {
  switch (family.window) {
    case WindowRule::kNone:
      return false;
    case WindowRule::kEveryLayer:
      return true;
    case WindowRule::kFlag:
      return index >= parameter;
    case WindowRule::kNoRope:
      return !has_rotary;
    case WindowRule::kPattern:
      return (index + 1) % parameter != 0;
  }
  return false;
}

void ReadLayerForms(ConfigFields& fields, const ModelFamily& family, ModelConfig& config) {
  const int64_t window = ReadWindow(fields, family);
  const std::vector<bool> rotary = ReadRotaryLayers(fields, family, config.num_layers);
  const int64_t parameter =
      family.window == WindowRule::kFlag
          ? fields.Integer("max_window_layers", 28, 0, kMaxLayers)
          : fields.Integer("sliding_window_pattern", std::max<int64_t>(family.window_pattern, 1), 1,
                           kMaxLayers);
  const Json* const types = fields.Find("layer_types");
  if (types != nullptr && (!types->is_array() || std::ssize(*types) != config.num_layers)) {
    fields.Reject("layer_types needs a list of ", config.num_layers, " texts, one a layer");
    return;
  }
  if (!fields.status().ok()) return;
  std::vector<LayerForm> forms(static_cast<size_t>(config.num_layers));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    LayerForm& form = forms[i];
    form.has_rotary = rotary[i];
    bool slides = SlidesByRule(family, i, parameter, rotary[i]);
    if (types != nullptr) {
      const Json& type = (*types)[i];
      const bool is_full = type == "full_attention", is_sliding = type == "sliding_attention";
      const bool is_ruled = family.window == WindowRule::kEveryLayer && window > 0;
      if ((!is_full && !is_sliding) || (is_sliding && window == 0) || (is_ruled && is_full)) {
        fields.Refuse("layer_types has ", type.dump(), " for layer ", i, "; supported: ",
                      is_ruled
                          ? "sliding_attention"
                          : (window > 0 ? "full_attention, sliding_attention" : "full_attention"));
        return;
      }
      slides = is_sliding;
    }
    form.window = slides ? window : 0;
    form.sliding_rope = slides && family.has_sliding_rope;
  }
  const bool all_plain =
      std::ranges::all_of(forms, [](const LayerForm& form) { return form == LayerForm{}; });
  if (!all_plain) config.layer_forms = std::move(forms);
}

// Gemma 3 has two embeddings: in transformers 5 both stand in rope_parameters by layer type, in
// transformers 4 the one of sliding layers is rope_local_base_freq.
absl::Status ReadBothRopes(ConfigFields& fields, const std::string& origin,
                           const RopeDefaults& defaults, ModelConfig& config) {
  const Json* const nested = fields.Find("rope_parameters");
  config.sliding_rope.emplace();
  config.sliding_rope->theta = fields.Positive("rope_local_base_freq", 10000);
  if (nested == nullptr || !nested->is_object()) {
    return ReadRopeSettings(fields, origin, config.head_dim, defaults,
                            config.max_position_embeddings, config.rope);
  }
  config.rope.theta = fields.Positive("rope_theta", defaults.theta);
  const std::pair<const char*, RopeSettings*> both[] = {
      {"full_attention", &config.rope}, {"sliding_attention", &*config.sliding_rope}};
  for (const auto& [type, settings] : both) {
    const auto found = nested->find(type);
    if (found == nested->end() || !found->is_object()) continue;
    TANDEM_RETURN_IF_ERROR(
        ReadRopeObject(fields, *found, absl::StrCat(origin, ": rope_parameters: ", type),
                       config.head_dim, config.max_position_embeddings, *settings));
  }
  if (config.sliding_rope->type != RopeType::kDefault) {
    fields.Refuse("rope_parameters: sliding_attention: rope_type other than default");
  }
  return fields.status();
}

absl::Status ReadRope(ConfigFields& fields, const std::string& origin, const ModelFamily& family,
                      ModelConfig& config) {
  const RopeDefaults defaults = {family.rope_theta, family.partial_rotary_factor};
  if (family.has_sliding_rope) {
    TANDEM_RETURN_IF_ERROR(ReadBothRopes(fields, origin, defaults, config));
  } else {
    TANDEM_RETURN_IF_ERROR(ReadRopeSettings(fields, origin, config.head_dim, defaults,
                                            config.max_position_embeddings, config.rope));
  }
  if (config.rope.partial_rotary_factor != 1 && !family.partial_rotary) {
    fields.Refuse("partial_rotary_factor other than 1 is not supported for model_type '",
                  family.model_type, "'");
  }
  return fields.status();
}

int32_t TokenId(ConfigFields& fields, const char* key, int32_t fallback, int64_t vocab_size) {
  return static_cast<int32_t>(fields.Integer(key, fallback, -1, vocab_size - 1));
}

// Adds the ids of "eos_token_id", an integer or a list, that are not in the list yet.
void AddEosTokens(ConfigFields& fields, ModelConfig& config) {
  const Json* const value = fields.Find("eos_token_id");
  if (value == nullptr) return;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id >= config.vocab_size) {
      fields.Reject("eos_token_id has ", id.dump(), "; ids lie in [0, ", config.vocab_size, ")");
      return;
    }
    std::vector<int32_t>& ids = config.eos_token_ids;
    if (std::find(ids.begin(), ids.end(), id.get<int32_t>()) == ids.end()) {
      ids.push_back(id.get<int32_t>());
    }
  }
}

absl::StatusOr<Json> ParseObject(std::string_view text, std::string_view origin) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return InvalidArgument(origin, ": not a JSON object");
  }
  return json;
}

}  // namespace

std::string SupportedFamilies() {
  return absl::StrJoin(kModelFamilies, ", ", [](std::string* out, const ModelFamily& family) {
    absl::StrAppend(out, std::string(family.model_type), " (", std::string(family.architecture),
                    ")");
  });
}

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, std::string_view origin) {
  TANDEM_ASSIGN_OR_RETURN(const Json object, ParseObject(json, origin));
  const std::string where(origin);
  ConfigFields fields(object, where);
  ModelConfig config;
  const ModelFamily* const family = ReadFamily(fields);
  TANDEM_RETURN_IF_ERROR(fields.status());
  config.model_type = family->model_type;
  RefuseUnsupported(fields, *family);
  ReadShape(fields, *family, config);
  ReadVariants(fields, *family, config);
  TANDEM_RETURN_IF_ERROR(fields.status());
  ReadLayerForms(fields, *family, config);
  TANDEM_RETURN_IF_ERROR(fields.status());
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, where, *family, config));

  const auto bos =
      object.contains("bos_token_id") || family->bos >= config.vocab_size ? -1 : family->bos;
  config.bos_token_id = TokenId(fields, "bos_token_id", bos, config.vocab_size);
  config.pad_token_id = TokenId(fields, "pad_token_id", -1, config.vocab_size);
  AddEosTokens(fields, config);
  // The defaults of transformers for a configuration without the field.
  if (!object.contains("eos_token_id")) {
    for (const int32_t id : family->eos) {
      if (id >= 0 && id < config.vocab_size) config.eos_token_ids.push_back(id);
    }
  }
  TANDEM_RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/config.json");
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) {
    return NotFound(
        Printable(path),  // a directory's name may hold control characters
        " is not there; a model directory holds config.json, model.safetensors (or shards "
        "with model.safetensors.index.json), tokenizer.json and tokenizer_config.json, as "
        "transformers' save_pretrained writes them");
  }
  TANDEM_RETURN_IF_ERROR(text.status());
  TANDEM_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(*text, path));

  const std::string generation_path = absl::StrCat(directory, "/generation_config.json");
  const absl::StatusOr<std::string> generation = ReadFile(generation_path);
  if (absl::IsNotFound(generation.status())) return config;
  TANDEM_RETURN_IF_ERROR(generation.status());
  TANDEM_ASSIGN_OR_RETURN(const Json object, ParseObject(*generation, generation_path));
  ConfigFields fields(object, generation_path);
  AddEosTokens(fields, config);
  TANDEM_RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace tandem
