#include "common/lora/peft_files.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/config/config_fields.h"
#include "common/model/safetensors.h"
#include "common/tensor/nearest_cast.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr int64_t kMaxLoraRank = 65536;

std::string InDirectory(const std::string& directory, const char* name) {
  return (std::filesystem::path(directory) / name).string();
}

// Is the field there, and neither null, false, nor empty?
bool IsSet(const nlohmann::json& config, const char* key) {
  const auto field = config.find(key);
  if (field == config.end() || field->is_null()) return false;
  if (field->is_boolean()) return field->get<bool>();
  return !field->empty();
}

// What this project has not.
void RefuseOthers(const nlohmann::json& config, ConfigFields& fields) {
  const std::string type = fields.Text("peft_type", "LORA"), bias = fields.Text("bias", "none");
  if (type != "LORA") fields.Refuse("peft_type is ", type, ", want LORA");
  if (bias != "none") fields.Refuse("bias is '", bias, "', want none");
  for (const char* const key :
       {"use_dora", "use_qalora", "fan_in_fan_out", "modules_to_save", "rank_pattern",
        "alpha_pattern", "layers_to_transform", "layer_replication", "exclude_modules",
        "target_parameters", "trainable_token_indices", "lora_bias", "alora_invocation_tokens",
        "arrow_config", "corda_config"}) {
    if (IsSet(config, key)) fields.Refuse(key, " is not supported");
  }
}

absl::StatusOr<LoraOptions> ReadOptions(const std::string& path, const nlohmann::json& config) {
  ConfigFields fields(config, path);
  RefuseOthers(config, fields);
  LoraOptions options;
  options.rank = fields.Integer("r", std::nullopt, 1, kMaxLoraRank);
  options.alpha = fields.Positive("lora_alpha", std::nullopt);
  if (const nlohmann::json* const dropout = fields.Find("lora_dropout"); dropout != nullptr) {
    options.dropout = dropout->is_number() ? dropout->get<double>() : -1;
    if (!(options.dropout >= 0 && options.dropout < 1)) {
      fields.Reject("lora_dropout is ", dropout->dump(), ", want a number from 0 to below 1");
    }
  }
  options.rslora = fields.Flag("use_rslora", false);
  const nlohmann::json* const targets = fields.Find("target_modules");
  if (targets != nullptr && targets->is_string()) {
    // PEFT takes a regular expression here; the one that everybody writes is all-linear.
    options.targets = {targets->get<std::string>()};
  } else if (targets != nullptr && targets->is_array() && !targets->empty() &&
             std::ranges::all_of(*targets, [](const auto& one) { return one.is_string(); })) {
    options.targets = targets->get<std::vector<std::string>>();
  } else {
    fields.Reject("target_modules: want a list of names, or all-linear");
  }
  TANDEM_RETURN_IF_ERROR(fields.status());
  return options;
}

absl::StatusOr<nlohmann::json> ReadConfig(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument(path, ": not a JSON object");
  return json;
}

// The name in the model of a copy of the base's embedding or head; empty: `name` is none.
std::string CopiedTensor(const std::string& name) {
  for (const char* const end : {"lm_head.base_layer.weight", "lm_head.weight",
                                "embed_tokens.weight", "embed_tokens.base_layer.weight"}) {
    if (!name.ends_with(end)) continue;
    return name.find("lm_head") != std::string::npos ? "lm_head.weight"
                                                     : "model.embed_tokens.weight";
  }
  return "";
}

// Takes the tensors in LoraTensors order, of any float dtype, and the copies.
absl::Status MatchTensors(const std::string& path, const std::vector<TensorSpec>& want,
                          std::vector<HostTensor> have, LoraAdapter& adapter) {
  std::map<std::string, HostTensor> by_name;
  for (HostTensor& tensor : have) {
    std::string name = tensor.spec.name;
    by_name.emplace(std::move(name), std::move(tensor));
  }
  for (const TensorSpec& spec : want) {
    const auto found = by_name.find(spec.name);
    if (found == by_name.end()) return InvalidArgument(path, ": ", spec.name, " is missing");
    if (found->second.spec.shape != spec.shape || !IsFloat(found->second.spec.dtype)) {
      return InvalidArgument(path, ": ", found->second.spec.ToString(), ", want the shape of ",
                             spec.ToString());
    }
    adapter.tensors.push_back(std::move(found->second));
    by_name.erase(found);
  }
  for (auto entry = by_name.begin(); entry != by_name.end();) {
    const std::string copied = CopiedTensor(entry->first);
    if (copied.empty()) {
      ++entry;
      continue;
    }
    entry->second.spec.name = copied;
    adapter.copies.push_back(std::move(entry->second));
    entry = by_name.erase(entry);
  }
  if (!by_name.empty()) {
    return InvalidArgument(path, ": ", by_name.begin()->first,
                           " is none of the adapter's tensors (and ", by_name.size() - 1, " more)");
  }
  return absl::OkStatus();
}

}  // namespace

bool IsPeftDirectory(const std::string& directory) {
  std::error_code ignored;
  return std::filesystem::exists(InDirectory(directory, kPeftConfig), ignored);
}

absl::StatusOr<LoraAdapter> ReadPeftDirectory(const std::string& directory,
                                              const ModelConfig& config) {
  const std::string path = InDirectory(directory, kPeftConfig);
  TANDEM_ASSIGN_OR_RETURN(const nlohmann::json json, ReadConfig(path));
  LoraAdapter adapter;
  TANDEM_ASSIGN_OR_RETURN(adapter.options, ReadOptions(path, json));
  auto modules = LoraModules(config, adapter.options);
  if (!modules.ok()) {
    return InvalidArgument(path, ": target_modules: ", modules.status().message());
  }
  adapter.modules = *std::move(modules);
  const std::string tensors = InDirectory(directory, kPeftTensors);
  TANDEM_ASSIGN_OR_RETURN(SafetensorsFile file, ReadSafetensors(tensors));
  TANDEM_RETURN_IF_ERROR(
      MatchTensors(tensors, LoraTensors(adapter.modules, adapter.options.rank, DType::kF32),
                   std::move(file.tensors), adapter));
  return adapter;
}

absl::Status CheckCopies(const LoraAdapter& adapter, std::span<const HostTensor> base) {
  for (const HostTensor& copy : adapter.copies) {
    const auto of_base = std::ranges::find(
        base, copy.spec.name, [](const HostTensor& tensor) { return tensor.spec.name; });
    if (of_base == base.end()) continue;  // a head that is tied to the embedding
    TANDEM_ASSIGN_OR_RETURN(const HostTensor ours, CastNearest(*of_base, copy.spec.dtype));
    if (copy.spec.shape != ours.spec.shape || !std::ranges::equal(copy.bytes, ours.bytes)) {
      return InvalidArgument(
          "the adapter was saved with ", copy.spec.ToString(), ", which is not the base's ",
          of_base->spec.ToString(),
          ": was its vocabulary changed? Only adapters of linear layers are read");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> BaseOfPeftDirectory(const std::string& directory) {
  const std::string path = InDirectory(directory, kPeftConfig);
  TANDEM_ASSIGN_OR_RETURN(const nlohmann::json json, ReadConfig(path));
  ConfigFields fields(json, path);
  const std::string base = fields.Text("base_model_name_or_path", std::nullopt);
  TANDEM_RETURN_IF_ERROR(fields.status());
  return base;
}

std::string PeftConfigText(const std::string& base_model, const LoraOptions& options,
                           const std::vector<LoraModule>& modules) {
  // The modules by the ends of their names, as PEFT matches them.
  std::set<std::string> targets;
  for (const LoraModule& module : modules) {
    const std::string name = module.weight.substr(0, module.weight.rfind('.'));
    targets.insert(name.substr(name.rfind('.') + 1));
  }
  const nlohmann::ordered_json config = {{"peft_type", "LORA"},
                                         {"task_type", "CAUSAL_LM"},
                                         {"base_model_name_or_path", base_model},
                                         {"r", options.rank},
                                         {"lora_alpha", options.alpha},
                                         {"lora_dropout", options.dropout},
                                         {"use_rslora", options.rslora},
                                         {"target_modules", targets},
                                         {"bias", "none"},
                                         {"fan_in_fan_out", false},
                                         {"inference_mode", true},
                                         {"init_lora_weights", true},
                                         {"modules_to_save", nullptr}};
  return config.dump(2) + "\n";
}

absl::Status WritePeftDirectory(const std::string& directory, const std::string& config_text,
                                std::span<const TensorSource> tensors) {
  TANDEM_RETURN_IF_ERROR(WriteSafetensors(InDirectory(directory, kPeftTensors), tensors));
  return WriteFileAtomically(InDirectory(directory, kPeftConfig), config_text);
}

}  // namespace tandem
