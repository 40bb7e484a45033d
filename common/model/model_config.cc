#include "common/model/model_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

using Json = nlohmann::json;

struct Family {
  const char* model_type;
  const char* architecture;
};

constexpr std::array<Family, 3> kFamilies = {
    {{"llama", "LlamaForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}}};
constexpr char kSupported[] =
    "supported: llama (LlamaForCausalLM), qwen2 (Qwen2ForCausalLM), qwen3 (Qwen3ForCausalLM)";

struct DTypeSpelling {
  const char* name;
  DType dtype;
};

constexpr std::array<DTypeSpelling, 4> kDTypes = {{{"float32", DType::kF32},
                                                   {"bfloat16", DType::kBF16},
                                                   {"float16", DType::kF16},
                                                   {"float64", DType::kF64}}};

// Reads typed fields of one JSON object. The first failure is kept in status(), and later reads
// return their fallback, so a caller reads all fields and checks once. A null counts as absent.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const absl::Status& status() const { return status_; }

  template <typename... Parts>
  void Refuse(const Parts&... parts) {
    Keep(Unimplemented(where_, ": ", parts...));
  }
  template <typename... Parts>
  void Reject(const Parts&... parts) {
    Keep(InvalidArgument(where_, ": ", parts...));
  }

  const Json* Find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  int64_t Integer(const char* key, std::optional<int64_t> fallback, int64_t min, int64_t max) {
    const Json* const value = Present(key, fallback.has_value());
    if (value == nullptr) return fallback.value_or(min);
    if (!value->is_number_integer() || *value < min || *value > max) {
      Reject(key, " is ", value->dump(), "; an integer in [", min, ", ", max, "] is needed");
      return min;
    }
    return value->get<int64_t>();
  }

  // A number greater than 0.
  double Positive(const char* key, std::optional<double> fallback) {
    const Json* const value = Present(key, fallback.has_value());
    if (value == nullptr) return fallback.value_or(1);
    if (!value->is_number() || !(value->get<double>() > 0)) {
      Reject(key, " is ", value->dump(), "; a number above 0 is needed");
      return 1;
    }
    return value->get<double>();
  }

  bool Flag(const char* key, bool fallback) {
    const Json* const value = Find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) {
      Reject(key, " is ", value->dump(), "; true or false is needed");
      return fallback;
    }
    return value->get<bool>();
  }

  std::string Text(const char* key, std::optional<std::string> fallback) {
    const Json* const value = Present(key, fallback.has_value());
    if (value == nullptr) return fallback.value_or("");
    if (!value->is_string()) {
      Reject(key, " is ", value->dump(), "; a string is needed");
      return "";
    }
    return value->get<std::string>();
  }

 private:
  const Json* Present(const char* key, bool optional) {
    const Json* const value = Find(key);
    if (value == nullptr && !optional) Reject("the field ", key, " is missing");
    return value;
  }

  void Keep(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

  const Json& object_;
  const std::string where_;
  absl::Status status_;
};

constexpr int64_t kMaxSize = int64_t{1} << 31;

void ReadFamily(Fields& fields, ModelConfig& config) {
  const Json* const architectures = fields.Find("architectures");
  const auto is_known = [&](const Family& known) {
    return *architectures == known.architecture ||
           *architectures == Json::array({known.architecture});
  };
  if (fields.Find("model_type") == nullptr && architectures != nullptr &&
      std::none_of(kFamilies.begin(), kFamilies.end(), is_known)) {
    fields.Refuse("architectures ", architectures->dump(),
                  ", and no model_type: the model is not supported; ", kSupported);
    return;
  }
  config.model_type = fields.Text("model_type", std::nullopt);
  if (!fields.status().ok()) return;
  const auto family = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& known) {
    return known.model_type == config.model_type;
  });
  if (family == kFamilies.end()) {
    fields.Refuse("model_type '", config.model_type, "' is not supported; ", kSupported);
    return;
  }
  if (architectures != nullptr) {
    if (!architectures->is_array() || architectures->size() != 1 ||
        (*architectures)[0] != family->architecture) {
      fields.Refuse("architectures ", architectures->dump(), " with model_type '",
                    config.model_type, "' is not supported; ", kSupported);
    }
  }
}

void RefuseUnsupported(Fields& fields, const ModelConfig& config) {
  const std::string activation = fields.Text("hidden_act", "silu");
  if (activation != "silu") {
    fields.Refuse("hidden_act '", activation, "' is not supported; supported: silu");
  }
  if (fields.Find("quantization_config") != nullptr) {
    fields.Refuse(
        "quantization_config: quantised checkpoints are not supported; use the float "
        "checkpoint (float32, bfloat16 or float16)");
  }
  for (const char* const key : {"num_experts", "num_local_experts"}) {
    if (fields.Integer(key, 0, 0, kMaxSize) > 0) {
      fields.Refuse(key, ": mixture of experts is not supported; ", kSupported);
    }
  }
  const bool windowed = config.model_type == "llama" ? fields.Find("sliding_window") != nullptr
                                                     : fields.Flag("use_sliding_window", false);
  if (windowed) {
    fields.Refuse("sliding_window: sliding window attention is not supported; full attention is");
  }
  if (const Json* const types = fields.Find("layer_types")) {
    for (const Json& type : *types) {
      if (type == "full_attention") continue;
      fields.Refuse("layer_types has ", type.dump(), "; supported: full_attention");
      break;
    }
  }
  if (fields.Integer("pretraining_tp", 1, 0, kMaxSize) > 1) {
    fields.Refuse("pretraining_tp other than 1 is not supported");
  }
  if (fields.Flag("rope_interleaved", false)) {
    fields.Refuse("rope_interleaved true is not supported; pairs are (i, i + head_dim / 2)");
  }
}

void ReadShape(Fields& fields, ModelConfig& config) {
  const auto size = [&](const char* key) { return fields.Integer(key, std::nullopt, 1, kMaxSize); };
  config.vocab_size =
      fields.Integer("vocab_size", std::nullopt, 1, std::numeric_limits<int32_t>::max());
  config.hidden_size = size("hidden_size");
  config.intermediate_size = size("intermediate_size");
  config.num_layers = fields.Integer("num_hidden_layers", std::nullopt, 1, 100'000);
  config.num_heads = fields.Integer("num_attention_heads", std::nullopt, 1, 1 << 20);
  config.num_kv_heads = fields.Integer("num_key_value_heads", config.num_heads, 1, 1 << 20);
  config.max_position_embeddings = size("max_position_embeddings");
  if (!fields.status().ok()) return;

  if (config.num_heads % config.num_kv_heads != 0) {
    fields.Reject("num_attention_heads ", config.num_heads,
                  " is not a multiple of num_key_value_heads ", config.num_kv_heads);
  }
  if (config.model_type == "qwen3") {
    config.head_dim = fields.Integer("head_dim", 128, 1, 1 << 20);
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
  // The input of every linear layer must have an even size, because bf16 instructions take elements
  // in pairs.
  for (const auto& [name, size] : {std::pair("hidden_size", config.hidden_size),
                                   std::pair("intermediate_size", config.intermediate_size)}) {
    if (size % 2 != 0)
      fields.Reject(name, " ", size, " is odd; linear layers take inputs in pairs");
  }
}

void ReadVariants(Fields& fields, ModelConfig& config) {
  config.rms_norm_eps = fields.Positive("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = fields.Flag("tie_word_embeddings", false);
  const bool qwen2 = config.model_type == "qwen2";
  const bool attention_bias = !qwen2 && fields.Flag("attention_bias", false);
  config.attention_qkv_bias = qwen2 || attention_bias;
  config.attention_o_bias = attention_bias;
  config.mlp_bias = config.model_type == "llama" && fields.Flag("mlp_bias", false);
  config.qk_norm = config.model_type == "qwen3";

  const char* const key = fields.Find("dtype") != nullptr ? "dtype" : "torch_dtype";
  const std::string text = fields.Text(key, "float32");
  const auto spelling =
      std::find_if(kDTypes.begin(), kDTypes.end(),
                   [name = absl::StripPrefix(text, "torch.")](const DTypeSpelling& known) {
                     return known.name == name;
                   });
  if (spelling == kDTypes.end()) {
    fields.Reject(key, " is '", text, "'; one of float32, bfloat16, float16, float64 is needed");
    return;
  }
  config.checkpoint_dtype = spelling->dtype;
}

void ReadLlama3Scaling(Fields& rope, ModelConfig& config) {
  config.has_llama3_scaling = true;
  Llama3RopeScaling& scaling = config.llama3_scaling;
  scaling.factor = rope.Positive("factor", std::nullopt);
  scaling.low_freq_factor = rope.Positive("low_freq_factor", std::nullopt);
  scaling.high_freq_factor = rope.Positive("high_freq_factor", std::nullopt);
  scaling.original_max_position_embeddings =
      rope.Integer("original_max_position_embeddings", config.max_position_embeddings, 1, kMaxSize);
  if (scaling.factor < 1) rope.Reject("factor ", scaling.factor, " is below 1");
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    rope.Reject("high_freq_factor ", scaling.high_freq_factor, " is not above low_freq_factor ",
                scaling.low_freq_factor);
  }
}

// transformers 5 writes one "rope_parameters" with rope_theta inside; transformers 4 writes
// "rope_theta" and, if scaled, "rope_scaling", where "type" is an older name of "rope_type".
absl::Status ReadRope(Fields& fields, const std::string& origin, ModelConfig& config) {
  config.rope_theta = fields.Positive("rope_theta", 10000);
  if (fields.Positive("partial_rotary_factor", 1) != 1) {
    fields.Refuse("partial_rotary_factor other than 1 is not supported");
  }
  const char* const key =
      fields.Find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* const object = fields.Find(key);
  if (object == nullptr || !fields.status().ok()) return fields.status();
  if (!object->is_object()) fields.Reject(key, " is ", object->dump(), "; an object is needed");
  if (!fields.status().ok()) return fields.status();

  Fields rope(*object, absl::StrCat(origin, ": ", key));
  for (const auto& [name, value] : object->items()) {
    if (value.is_object()) rope.Refuse("'", name, "': rotary settings per layer type");
  }
  config.rope_theta = rope.Positive("rope_theta", config.rope_theta);
  if (rope.Positive("partial_rotary_factor", 1) != 1) {
    rope.Refuse("partial_rotary_factor other than 1 is not supported");
  }
  const std::string type = rope.Text("rope_type", rope.Text("type", "default"));
  if (type == "llama3") {
    ReadLlama3Scaling(rope, config);
  } else if (type != "default") {
    rope.Refuse("rope_type '", type, "' is not supported; supported: default, llama3");
  }
  return rope.status();
}

int32_t TokenId(Fields& fields, const char* key, int32_t fallback, int64_t vocab_size) {
  return static_cast<int32_t>(fields.Integer(key, fallback, -1, vocab_size - 1));
}

// Adds the ids of "eos_token_id", an integer or a list, that are not in the list yet.
void AddEosTokens(Fields& fields, ModelConfig& config) {
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

Json IdOrNull(int32_t id) { return id < 0 ? Json() : Json(id); }

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, std::string_view origin) {
  TANDEM_ASSIGN_OR_RETURN(const Json object, ParseObject(json, origin));
  const std::string where(origin);
  Fields fields(object, where);
  ModelConfig config;
  ReadFamily(fields, config);
  TANDEM_RETURN_IF_ERROR(fields.status());
  RefuseUnsupported(fields, config);
  ReadShape(fields, config);
  ReadVariants(fields, config);
  TANDEM_RETURN_IF_ERROR(fields.status());
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, where, config));

  const bool llama = config.model_type == "llama";
  const bool names_bos = object.contains("bos_token_id");
  config.bos_token_id =
      TokenId(fields, "bos_token_id", llama && !names_bos ? 1 : -1, config.vocab_size);
  config.pad_token_id = TokenId(fields, "pad_token_id", -1, config.vocab_size);
  AddEosTokens(fields, config);
  // The default of transformers for a Llama configuration without the field.
  if (llama && !object.contains("eos_token_id")) config.eos_token_ids = {2};
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
  Fields fields(object, generation_path);
  AddEosTokens(fields, config);
  TANDEM_RETURN_IF_ERROR(fields.status());
  return config;
}

std::string ModelConfigToJson(const ModelConfig& config, DType dtype) {
  nlohmann::ordered_json json;
  for (const Family& family : kFamilies) {
    if (config.model_type == family.model_type) json["architectures"] = {family.architecture};
  }
  json["model_type"] = config.model_type;
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim;
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["rope_theta"] = config.rope_theta;
  json["rope_scaling"] = nullptr;
  if (config.has_llama3_scaling) {
    const Llama3RopeScaling& scaling = config.llama3_scaling;
    json["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", scaling.factor},
        {"low_freq_factor", scaling.low_freq_factor},
        {"high_freq_factor", scaling.high_freq_factor},
        {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
  }
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  if (config.model_type != "qwen2") json["attention_bias"] = config.attention_o_bias;
  if (config.model_type == "llama") {
    json["mlp_bias"] = config.mlp_bias;
  } else {
    json["use_sliding_window"] = false;
  }
  json["bos_token_id"] = IdOrNull(config.bos_token_id);
  json["pad_token_id"] = IdOrNull(config.pad_token_id);
  json["eos_token_id"] = nullptr;
  if (config.eos_token_ids.size() == 1) {
    json["eos_token_id"] = config.eos_token_ids.front();
  } else if (config.eos_token_ids.size() > 1) {
    json["eos_token_id"] = config.eos_token_ids;
  }
  for (const DTypeSpelling& spelling : kDTypes) {
    if (spelling.dtype == dtype) json["torch_dtype"] = spelling.name;
  }
  return json.dump(2) + "\n";
}

}  // namespace tandem
