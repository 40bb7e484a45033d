// Adapters in PEFT's directory layout: adapter_config.json and adapter_model.safetensors. Free of
// LibTorch.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/lora/lora_shape.h"
#include "common/model/model_config.h"
#include "common/weights/host_tensor.h"

namespace tandem {

inline constexpr char kPeftConfig[] = "adapter_config.json";
inline constexpr char kPeftTensors[] = "adapter_model.safetensors";

struct LoraAdapter {
  LoraOptions options;
  std::vector<LoraModule> modules;
  std::vector<HostTensor> tensors;  // LoraTensors order, of any float dtype
  // Embedding and head, which PEFT saves beside an adapter of the head, by their names in the model.
  std::vector<HostTensor> copies;
};

// Is this a directory with adapter_config.json?
bool IsPeftDirectory(const std::string& directory);

//   NOT_FOUND         a file is missing
//   INVALID_ARGUMENT  adapter_config.json is not JSON, or a field has another type; a tensor is
//                     missing, unknown or of another shape (named); a target that the model does not
//                     have
//   UNIMPLEMENTED     what this project has not, by name: another peft_type than LORA, DoRA, biases,
//                     modules_to_save, ranks or alphas by module, layers chosen by number
absl::StatusOr<LoraAdapter> ReadPeftDirectory(const std::string& directory,
                                              const ModelConfig& config);

// OK if the adapter's copies of the base's tensors are these.
//   INVALID_ARGUMENT  one differs (named), as after a change of the vocabulary
absl::Status CheckCopies(const LoraAdapter& adapter, std::span<const HostTensor> base);

// base_model_name_or_path of the directory: a path or a name.
//   NOT_FOUND, INVALID_ARGUMENT as above
absl::StatusOr<std::string> BaseOfPeftDirectory(const std::string& directory);

// adapter_config.json. `base_model` is what PEFT loads the base from.
std::string PeftConfigText(const std::string& base_model, const LoraOptions& options,
                           const std::vector<LoraModule>& modules);

// Writes both files into an existing directory, each atomically. `tensors` in LoraTensors order.
absl::Status WritePeftDirectory(const std::string& directory, const std::string& config_text,
                                std::span<const TensorSource> tensors);

}  // namespace tandem
