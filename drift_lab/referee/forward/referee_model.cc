#include "drift_lab/referee/forward/referee_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/model/safetensors.h"
#include "common/tensor/host_tensor_conversion.h"
#include "drift_lab/referee/forward/referee_tensors.h"

namespace tandem::drift {
namespace {

namespace fs = std::filesystem;

std::string HubCache() {
  for (const auto& [variable, below] : {std::pair{"HF_HUB_CACHE", ""},
                                        {"HF_HOME", "/hub"},
                                        {"XDG_CACHE_HOME", "/huggingface/hub"},
                                        {"HOME", "/.cache/huggingface/hub"}}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != '\0') return absl::StrCat(value, below);
  }
  return "";
}

// The newest snapshot below `directory` that has a config.json; empty if none.
std::string NewestSnapshot(const std::string& directory) {
  std::error_code error;
  std::string newest;
  fs::file_time_type time;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    if (!fs::exists(entry.path() / "config.json", error)) continue;
    const fs::file_time_type written = fs::last_write_time(entry.path(), error);
    if (newest.empty() || written > time) {
      newest = entry.path().string();
      time = written;
    }
  }
  return newest;
}

absl::StatusOr<std::unique_ptr<RefereeTensors>> LoadTensors(const ModelConfig& config,
                                                            const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> read, ReadModelTensors(directory));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<HostTensor> matched,
                          MatchModelTensors(config, std::move(read)));
  auto tensors = std::make_unique<RefereeTensors>();
  for (const HostTensor& tensor : matched) {
    TANDEM_ASSIGN_OR_RETURN(const at::Tensor view, ViewAsTensor(tensor));
    tensors->by_name[tensor.spec.name] = view.to(at::kFloat).contiguous();
  }
  return tensors;
}

std::map<std::string, std::string> ShardsOf(const std::string& directory) {
  std::map<std::string, std::string> shards;
  std::ifstream file(fs::path(directory) / "model.safetensors.index.json");
  const nlohmann::json index = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!index.is_object() || !index.contains("weight_map")) return shards;
  for (const auto& [name, shard] : index.at("weight_map").items()) {
    if (shard.is_string()) shards[name] = shard.get<std::string>();
  }
  return shards;
}

}  // namespace

absl::StatusOr<std::string> ResolveModelDirectory(const std::string& name) {
  std::error_code error;
  if (fs::is_directory(name, error)) return name;
  const bool is_hub_name = !name.empty() && std::count(name.begin(), name.end(), '/') <= 1 &&
                           name.front() != '/' && name.front() != '.' && !fs::exists(name, error);
  if (!is_hub_name) {
    return NotFound(name, ": expected a model directory (config.json and *.safetensors) or a Hub ",
                    "name (org/name), found ",
                    fs::exists(name, error) ? "a file" : "no such directory");
  }
  const std::string cache = HubCache();
  const std::string held =
      absl::StrCat(cache, "/models--", absl::StrReplaceAll(name, {{"/", "--"}}), "/snapshots");
  const std::string snapshot = cache.empty() ? "" : NewestSnapshot(held);
  if (!snapshot.empty()) return snapshot;
  return NotFound(
      name, ": no such directory, and no model of that name in the cache of the Hub's client (",
      held, "); `hf download ", name, "` puts it there");
}

RefereeModel::~RefereeModel() = default;

absl::StatusOr<std::unique_ptr<RefereeModel>> RefereeModel::Load(const std::string& model,
                                                                 const std::string& other) {
  std::unique_ptr<RefereeModel> out(new RefereeModel());
  TANDEM_ASSIGN_OR_RETURN(out->directory_, ResolveModelDirectory(model));
  TANDEM_ASSIGN_OR_RETURN(out->config_, ReadModelConfig(out->directory_));
  TANDEM_RETURN_IF_ERROR(CheckPlainDecoder(out->config_, "the replay of causes by a model"));
  TANDEM_ASSIGN_OR_RETURN(out->tensors_, LoadTensors(out->config_, out->directory_));
  out->shards_ = ShardsOf(out->directory_);
  if (other.empty()) return out;
  TANDEM_ASSIGN_OR_RETURN(out->other_directory_, ResolveModelDirectory(other));
  TANDEM_ASSIGN_OR_RETURN(out->other_, LoadTensors(out->config_, out->other_directory_));
  for (const auto& [name, tensor] : out->tensors_->by_name) {
    if (!at::equal(tensor, out->other_->by_name.at(name))) out->differing_.push_back(name);
  }
  std::map<std::string, std::string> shards = ShardsOf(out->other_directory_);
  if (!shards.empty()) out->shards_ = std::move(shards);
  return out;
}

}  // namespace tandem::drift
