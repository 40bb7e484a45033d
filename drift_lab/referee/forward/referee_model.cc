#include "drift_lab/referee/forward/referee_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/hub/resolve.h"
#include "common/lora/adapted_model.h"
#include "common/tensor/host_tensor_conversion.h"
#include "drift_lab/referee/forward/referee_tensors.h"

namespace tandem::drift {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<RefereeTensors>> LoadTensors(const ModelConfig& config,
                                                            const std::string& directory) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> read, ReadAdaptedTensors(directory));
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
  constexpr char kWanted[] =
      ": expected a model directory (config.json and *.safetensors) or a name on the Hub "
      "(ORG/NAME)";
  const auto found = hub::ResolveModel(name);
  if (absl::IsNotFound(found.status())) {
    return NotFound(name, kWanted, "; ", found.status().message());
  }
  TANDEM_RETURN_IF_ERROR(found.status());
  std::error_code error;
  if (fs::is_directory(found->path, error)) return found->path;
  return NotFound(name, kWanted, ", found a file");
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
