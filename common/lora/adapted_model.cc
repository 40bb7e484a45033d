#include "common/lora/adapted_model.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/hub/resolve.h"
#include "common/lora/lora_merge.h"
#include "common/lora/peft_files.h"
#include "common/model/model_config.h"
#include "common/model/safetensors.h"
#include "common/tensor/nearest_cast.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

bool IsDirectory(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

// The values may begin anywhere in a file.
absl::StatusOr<std::vector<float>> Floats(const HostTensor& tensor) {
  TANDEM_ASSIGN_OR_RETURN(const HostTensor wide, CastNearest(tensor, DType::kF32));
  std::vector<float> values(wide.bytes.size() / sizeof(float));
  std::memcpy(values.data(), wide.bytes.data(), wide.bytes.size());
  return values;
}

}  // namespace

absl::StatusOr<std::string> BaseDirectory(const std::string& directory) {
  if (!IsPeftDirectory(directory)) return directory;
  TANDEM_ASSIGN_OR_RETURN(const std::string base, BaseOfPeftDirectory(directory));
  if (IsDirectory(base)) return base;
  const fs::path beside = fs::path(directory) / base;
  if (IsDirectory(beside)) return beside.string();
  const auto found = hub::ResolveModel(base);
  if (found.ok()) return found->path;
  return NotFound(directory, "/", kPeftConfig,
                  ": the base model is not here: ", found.status().message());
}

absl::StatusOr<std::vector<HostTensor>> MergeAdapter(const LoraAdapter& adapter,
                                                     std::vector<HostTensor> base) {
  TANDEM_RETURN_IF_ERROR(CheckCopies(adapter, base));
  std::map<std::string, HostTensor*> by_name;
  for (HostTensor& tensor : base) by_name[tensor.spec.name] = &tensor;
  for (size_t m = 0; m < adapter.modules.size(); ++m) {
    const LoraModule& module = adapter.modules[m];
    const auto found = by_name.find(module.weight);
    if (found == by_name.end()) {
      return InvalidArgument("the base has no tensor ", module.weight, ", which has an adapter");
    }
    TANDEM_ASSIGN_OR_RETURN(const std::vector<float> a, Floats(adapter.tensors[2 * m]));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<float> b, Floats(adapter.tensors[2 * m + 1]));
    TANDEM_ASSIGN_OR_RETURN(std::vector<float> values, Floats(*found->second));
    if (std::ssize(values) != module.out * module.in) {
      return InvalidArgument(found->second->spec.ToString(), ": its adapter is of [", module.out,
                             ", ", module.in, "]");
    }
    const auto merged = std::make_shared<std::vector<float>>(std::move(values));
    MergeLora({a.data(), b.data(), adapter.options.rank, module.in, adapter.options.scaling()}, 0,
              module.out, merged->data(), merged->data());
    HostTensor& tensor = *found->second;
    tensor = {{tensor.spec.name, DType::kF32, tensor.spec.shape},
              std::as_bytes(std::span(*merged)),
              merged};
  }
  return base;
}

absl::StatusOr<std::vector<HostTensor>> ReadAdaptedTensors(const std::string& directory,
                                                           std::optional<DType> base_dtype) {
  if (!IsPeftDirectory(directory)) return ReadModelTensors(directory);
  TANDEM_ASSIGN_OR_RETURN(const std::string base, BaseDirectory(directory));
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(base));
  TANDEM_ASSIGN_OR_RETURN(const LoraAdapter adapter, ReadPeftDirectory(directory, config));
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, ReadModelTensors(base));
  for (HostTensor& tensor : tensors) {
    if (!base_dtype.has_value()) break;
    TANDEM_ASSIGN_OR_RETURN(tensor, CastNearest(tensor, *base_dtype));
  }
  return MergeAdapter(adapter, std::move(tensors));
}

}  // namespace tandem
