#include "common/lora/peft_files.h"

#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/config/config_fields.h"
#include "common/model/safetensors.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

constexpr char kConfigFile[] = "adapter_config.json";
constexpr char kTensorFile[] = "adapter_model.safetensors";

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

absl::Status RefuseOthers(const std::string& path, const nlohmann::json& config) {
  const std::string type = config.value("peft_type", std::string("LORA"));
  if (type != "LORA") return Unimplemented(path, ": peft_type is ", type, ", want LORA");
  const std::string bias = config.value("bias", std::string("none"));
  if (bias != "none") return Unimplemented(path, ": bias is '", bias, "', want none");
  for (const char* const key :
       {"use_dora", "fan_in_fan_out", "modules_to_save", "rank_pattern", "alpha_pattern",
        "layers_to_transform", "layer_replication", "exclude_modules", "target_parameters",
        "trainable_token_indices", "lora_bias"}) {
    if (IsSet(config, key)) return Unimplemented(path, ": ", key, " is not supported");
  }
  return absl::OkStatus();
}

absl::StatusOr<LoraOptions> ReadOptions(const std::string& path, const nlohmann::json& config) {
  TANDEM_RETURN_IF_ERROR(RefuseOthers(path, config));
  const auto number = [&](const char* key) -> absl::StatusOr<double> {
    const auto field = config.find(key);
    if (field == config.end() || !field->is_number() || !(field->get<double>() > 0)) {
      return InvalidArgument(path, ": ", key, ": want a number above 0");
    }
    return field->get<double>();
  };
  LoraOptions options;
  TANDEM_ASSIGN_OR_RETURN(const double rank, number("r"));
  TANDEM_ASSIGN_OR_RETURN(options.alpha, number("lora_alpha"));
  options.rank = static_cast<int64_t>(rank);
  if (IsSet(config, "lora_dropout") && config.at("lora_dropout").is_number()) {
    options.dropout = config.at("lora_dropout").get<double>();
  }
  options.rslora = IsSet(config, "use_rslora");
  const auto targets = config.find("target_modules");
  if (targets != config.end() && targets->is_string()) {
    // PEFT takes a regular expression here; the one that everybody writes is all-linear.
    options.targets = {targets->get<std::string>()};
  } else if (targets != config.end() && targets->is_array() && !targets->empty()) {
    options.targets.clear();
    for (const nlohmann::json& one : *targets) {
      if (!one.is_string()) return InvalidArgument(path, ": target_modules: want names");
      options.targets.push_back(one.get<std::string>());
    }
  } else {
    return InvalidArgument(path, ": target_modules: want a list of names, or all-linear");
  }
  return options;
}

// The tensors in LoraTensors order. `have` may be of any float dtype.
absl::StatusOr<std::vector<HostTensor>> MatchTensors(const std::string& path,
                                                     const std::vector<TensorSpec>& want,
                                                     std::vector<HostTensor> have) {
  std::map<std::string, HostTensor> by_name;
  for (HostTensor& tensor : have) {
    std::string name = tensor.spec.name;
    by_name.emplace(std::move(name), std::move(tensor));
  }
  std::vector<HostTensor> matched;
  for (const TensorSpec& spec : want) {
    const auto found = by_name.find(spec.name);
    if (found == by_name.end()) return InvalidArgument(path, ": ", spec.name, " is missing");
    if (found->second.spec.shape != spec.shape || !IsFloat(found->second.spec.dtype)) {
      return InvalidArgument(path, ": ", found->second.spec.ToString(), ", want the shape of ",
                             spec.ToString());
    }
    matched.push_back(std::move(found->second));
    by_name.erase(found);
  }
  if (!by_name.empty()) {
    return InvalidArgument(path, ": ", by_name.begin()->first,
                           " is none of the adapter's tensors (and ", by_name.size() - 1, " more)");
  }
  return matched;
}

}  // namespace

bool IsPeftDirectory(const std::string& directory) {
  std::error_code ignored;
  return std::filesystem::exists(InDirectory(directory, kConfigFile), ignored);
}

absl::StatusOr<LoraAdapter> ReadPeftDirectory(const std::string& directory,
                                              const ModelConfig& config) {
  const std::string path = InDirectory(directory, kConfigFile);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument(path, ": not a JSON object");
  LoraAdapter adapter;
  TANDEM_ASSIGN_OR_RETURN(adapter.options, ReadOptions(path, json));
  TANDEM_ASSIGN_OR_RETURN(adapter.modules, LoraModules(config, adapter.options));
  const std::string tensors = InDirectory(directory, kTensorFile);
  TANDEM_ASSIGN_OR_RETURN(SafetensorsFile file, ReadSafetensors(tensors));
  TANDEM_ASSIGN_OR_RETURN(
      adapter.tensors,
      MatchTensors(tensors, LoraTensors(adapter.modules, adapter.options.rank, DType::kF32),
                   std::move(file.tensors)));
  return adapter;
}

absl::Status WritePeftDirectory(const std::string& directory, const std::string& base_model,
                                const LoraOptions& options, const std::vector<LoraModule>& modules,
                                std::span<const TensorSource> tensors) {
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
  TANDEM_RETURN_IF_ERROR(WriteSafetensors(InDirectory(directory, kTensorFile), tensors));
  return WriteFileAtomically(InDirectory(directory, kConfigFile), config.dump(2) + "\n");
}

}  // namespace tandem
