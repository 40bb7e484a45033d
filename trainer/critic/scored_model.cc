#include "trainer/critic/scored_model.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/lora/adapted_model.h"
#include "nlohmann/json.hpp"
#include "trainer/critic/critic_options.h"

namespace tandem::trainer {
namespace {

using nlohmann::ordered_json;

bool HasTask(const ordered_json& config, const char* task) {
  return config.is_object() && config.contains("architectures") &&
         config["architectures"].is_array() && !config["architectures"].empty() &&
         config["architectures"].dump().find(task) != std::string::npos;
}

}  // namespace

absl::Status TakeHead(const std::string& directory, std::vector<HostTensor>& tensors,
                      std::optional<HostTensor>& head) {
  std::optional<HostTensor> bias;
  std::erase_if(tensors, [&](const HostTensor& tensor) {
    if (tensor.spec.name == kScoreWeight) head = tensor;
    if (tensor.spec.name == kScoreBias) bias = tensor;
    return tensor.spec.name == kScoreWeight || tensor.spec.name == kScoreBias;
  });
  const auto is_zero = [](std::byte b) { return b == std::byte{0}; };
  if (!bias.has_value() || std::ranges::all_of(bias->bytes, is_zero)) return absl::OkStatus();
  return Unimplemented(directory, ": ", kScoreBias, " is not zero; a head here has no bias");
}

absl::StatusOr<ModelConfig> ReadTrunkConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  auto parsed = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!HasTask(parsed, kSequenceTask) && !HasTask(parsed, kTokenTask)) {
    return ReadModelConfig(directory);
  }
  parsed["architectures"][0] =
      absl::StrReplaceAll(parsed["architectures"][0].get<std::string>(),
                          {{kSequenceTask, kCausalTask}, {kTokenTask, kCausalTask}});
  return ParseModelConfig(parsed.dump(), path);
}

absl::StatusOr<ScoredModel> ReadScoredModel(const std::string& directory) {
  ScoredModel model;
  TANDEM_ASSIGN_OR_RETURN(model.config, ReadTrunkConfig(directory));
  model.config.tie_word_embeddings = true;  // no head over the vocabulary
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadFile(directory + "/config.json"));
  model.of_tokens =
      HasTask(ordered_json::parse(config, nullptr, /*allow_exceptions=*/false), kTokenTask);
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, ReadAdaptedTensors(directory));
  TANDEM_RETURN_IF_ERROR(TakeHead(directory, tensors, model.head));
  if (model.head.has_value()) {
    const std::vector<int64_t>& shape = model.head->spec.shape;
    if (shape.size() != 2 || shape[1] != model.config.hidden_size) {
      return InvalidArgument(directory, ": ", model.head->spec.ToString(), " should be [heads, ",
                             model.config.hidden_size, "], the hidden size of the model");
    }
  }
  TANDEM_ASSIGN_OR_RETURN(model.weights, MatchModelTensors(model.config, std::move(tensors)));
  return model;
}

}  // namespace tandem::trainer
