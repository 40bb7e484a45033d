#include "cli/supervised/reward_model_directory.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/model/model_directory.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/model/safetensors.h"
#include "nlohmann/json.hpp"
#include "trainer/critic/critic_options.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;

constexpr char kScoreBias[] = "score.bias";
constexpr char kSequenceTask[] = "ForSequenceClassification";
constexpr char kTokenTask[] = "ForTokenClassification";
constexpr char kCausalTask[] = "ForCausalLM";

struct PadToken {
  int32_t id = -1;   // -1: none
  std::string text;  // empty: unknown
};

// The special tokens of tokenizer.json.
std::vector<PadToken> SpecialTokens(const std::string& directory) {
  std::vector<PadToken> tokens;
  const absl::StatusOr<std::string> text = ReadFile(directory + "/tokenizer.json");
  if (!text.ok()) return tokens;
  const auto parsed = ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object() || !parsed.contains("added_tokens")) return tokens;
  for (const auto& token : parsed["added_tokens"]) {
    if (!token.value("special", false)) continue;
    tokens.push_back({token.value("id", -1), token.value("content", "")});
  }
  return tokens;
}

// The model's own padding token unless it is an end token; else the first special token that is
// none.
PadToken ChoosePad(const ModelConfig& config, const std::string& tokenizer_from) {
  const auto is_end = [&](int32_t id) {
    return std::ranges::find(config.eos_token_ids, id) != config.eos_token_ids.end();
  };
  const std::vector<PadToken> special = SpecialTokens(tokenizer_from);
  for (const PadToken& token : special) {
    if (token.id == config.pad_token_id && !is_end(token.id)) return token;
  }
  if (config.pad_token_id >= 0 && !is_end(config.pad_token_id)) return {config.pad_token_id, ""};
  const auto other =
      std::ranges::find_if(special, [&](const PadToken& token) { return !is_end(token.id); });
  return other == special.end() ? PadToken{} : *other;
}

// Names the padding token in a JSON file of the tokenizer, where there is one.
absl::Status NamePad(const std::string& path, const std::string& pad) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return absl::OkStatus();
  auto parsed = ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::OkStatus();
  parsed["pad_token"] = pad;
  return WriteFileAtomically(path, parsed.dump(2) + "\n");
}

HostTensor Zeros(const std::string& name, int64_t count) {
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(count), 0.0f);
  return {{name, DType::kF32, {count}}, std::as_bytes(std::span<const float>(*values)), values};
}

std::string ConfigJson(RewardModelKind kind, const ModelConfig& config, int64_t num_heads,
                       DType dtype) {
  auto json = ordered_json::parse(ModelConfigToJson(config, dtype));
  const char* const task = kind == RewardModelKind::kOutcome ? kSequenceTask : kTokenTask;
  const std::string causal = json["architectures"][0].get<std::string>();
  json["architectures"][0] = absl::StrReplaceAll(causal, {{kCausalTask, task}});
  ordered_json names = ordered_json::object(), numbers = ordered_json::object();
  for (int64_t k = 0; k < num_heads; ++k) {
    const std::string name = absl::StrCat("LABEL_", k);
    names[absl::StrCat(k)] = name;
    numbers[name] = k;
  }
  json["num_labels"] = num_heads;
  json["id2label"] = names;
  json["label2id"] = numbers;
  return json.dump(2) + "\n";
}

bool IsZero(const HostTensor& tensor) {
  return std::ranges::all_of(tensor.bytes, [](std::byte b) { return b == std::byte{0}; });
}

bool HasTask(const ordered_json& config, const char* task) {
  return config.is_object() && config.contains("architectures") &&
         config["architectures"].is_array() && !config["architectures"].empty() &&
         config["architectures"].dump().find(task) != std::string::npos;
}
bool IsClassifier(const ordered_json& config) {
  return HasTask(config, kSequenceTask) || HasTask(config, kTokenTask);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadTrunkConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  auto parsed = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!IsClassifier(parsed)) return ReadModelConfig(directory);
  parsed["architectures"][0] =
      absl::StrReplaceAll(parsed["architectures"][0].get<std::string>(),
                          {{kSequenceTask, kCausalTask}, {kTokenTask, kCausalTask}});
  return ParseModelConfig(parsed.dump(), path);
}

absl::StatusOr<RewardModel> ReadRewardModel(const std::string& directory) {
  RewardModel model;
  TANDEM_ASSIGN_OR_RETURN(model.config, ReadTrunkConfig(directory));
  model.config.tie_word_embeddings = true;  // no head over the vocabulary
  TANDEM_ASSIGN_OR_RETURN(const std::string config, ReadFile(directory + "/config.json"));
  const auto parsed = ordered_json::parse(config, nullptr, /*allow_exceptions=*/false);
  if (HasTask(parsed, kTokenTask)) model.kind = RewardModelKind::kProcess;
  TANDEM_ASSIGN_OR_RETURN(std::vector<HostTensor> tensors, ReadModelTensors(directory));
  std::optional<HostTensor> head, bias;
  std::erase_if(tensors, [&](const HostTensor& tensor) {
    if (tensor.spec.name == trainer::kScoreWeight) head = tensor;
    if (tensor.spec.name == kScoreBias) bias = tensor;
    return tensor.spec.name == trainer::kScoreWeight || tensor.spec.name == kScoreBias;
  });
  if (!head.has_value()) {
    return InvalidArgument(directory, " has no ", trainer::kScoreWeight,
                           ": it is no reward model; tandem train-reward-model makes one");
  }
  const std::vector<int64_t>& shape = head->spec.shape;
  if (shape.size() != 2 || shape[1] != model.config.hidden_size) {
    return InvalidArgument(directory, ": ", head->spec.ToString(), " should be [heads, ",
                           model.config.hidden_size, "], the hidden size of the model");
  }
  if (bias.has_value() && !IsZero(*bias)) {
    return Unimplemented(directory, ": ", kScoreBias, " is not zero; a head here has no bias");
  }
  model.head = *head;
  TANDEM_ASSIGN_OR_RETURN(model.weights, MatchModelTensors(model.config, std::move(tensors)));
  return model;
}

absl::Status WriteRewardModel(RewardModelKind kind, const ModelConfig& config,
                              std::vector<HostTensor> tensors, const std::string& tokenizer_from,
                              const std::string& out, DType dtype) {
  const int64_t num_heads = tensors.back().spec.shape[0];
  if (kind == RewardModelKind::kProcess) tensors.push_back(Zeros(kScoreBias, num_heads));
  const PadToken pad = ChoosePad(config, tokenizer_from);
  ModelConfig of_trunk = config;
  of_trunk.pad_token_id = pad.id;
  of_trunk.tie_word_embeddings = true;
  TANDEM_RETURN_IF_ERROR(WriteModelFiles(ConfigJson(kind, of_trunk, num_heads, dtype),
                                         std::move(tensors), tokenizer_from, out, dtype));
  if (pad.text.empty()) return absl::OkStatus();
  for (const char* const name : {"/tokenizer_config.json", "/special_tokens_map.json"}) {
    TANDEM_RETURN_IF_ERROR(NamePad(out + name, pad.text));
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
