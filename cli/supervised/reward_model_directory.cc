#include "cli/supervised/reward_model_directory.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/model/model_directory.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "nlohmann/json.hpp"
#include "trainer/critic/critic_options.h"
#include "trainer/critic/scored_model.h"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;
using trainer::RewardModelKind;

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
  const char* const task =
      kind == RewardModelKind::kOutcome ? trainer::kSequenceTask : trainer::kTokenTask;
  const std::string causal = json["architectures"][0].get<std::string>();
  json["architectures"][0] = absl::StrReplaceAll(causal, {{trainer::kCausalTask, task}});
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

}  // namespace

absl::Status WriteRewardModel(trainer::RewardModelKind kind, const ModelConfig& config,
                              std::vector<HostTensor> tensors, const std::string& tokenizer_from,
                              const std::string& out, DType dtype) {
  const int64_t num_heads = tensors.back().spec.shape[0];
  if (kind == RewardModelKind::kProcess) tensors.push_back(Zeros(trainer::kScoreBias, num_heads));
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
