#include "cli/model/model_input.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "common/base/status_macros.h"
#include "common/hub/resolve.h"
#include "common/model/safetensors.h"

namespace tandem::cli {

absl::Status CheckModelDirectory(const std::string& directory) {
  std::error_code ignored;
  std::string missing;
  if (!std::filesystem::is_directory(directory, ignored)) {
    missing = "no such directory";
  } else {
    for (const char* file : {"config.json", "tokenizer.json"}) {
      if (!std::filesystem::exists(std::filesystem::path(directory) / file, ignored)) {
        missing = absl::StrCat("no ", file);
        break;
      }
    }
    const std::filesystem::path weights = std::filesystem::path(directory) / "model.safetensors";
    if (missing.empty() && !std::filesystem::exists(weights, ignored) &&
        !std::filesystem::exists(weights.string() + ".index.json", ignored)) {
      missing = "no model.safetensors";
      for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
        if (std::filesystem::exists(std::filesystem::path(directory) / pickle, ignored)) {
          return ReadModelTensors(directory).status();  // says how a pickle is converted
        }
      }
    }
  }
  if (missing.empty()) return absl::OkStatus();
  std::string message =
      absl::StrCat("model ", directory, ": ", missing,
                   "; a model is a Hugging Face directory with config.json, tokenizer.json and "
                   "model.safetensors (or shards with model.safetensors.index.json)");
  if (absl::StrContains(directory, "smollm2")) {
    absl::StrAppend(&message, "; deploy/setup/install.sh fetches SmolLM2-135M-Instruct");
  }
  return absl::NotFoundError(message);
}

absl::Status FindModel(std::string* model) {
  TANDEM_ASSIGN_OR_RETURN(const hub::Resolved found, hub::ResolveModel(*model));
  *model = found.path;
  const absl::Status checked = CheckModelDirectory(found.path);
  if (checked.ok() || found.name.empty()) return checked;
  return absl::Status(checked.code(),
                      absl::StrCat(checked.message(), "; tandem fetch ", found.name, "@",
                                   found.commit, " fetches what the snapshot lacks"));
}

absl::Status FindTokenizer(std::string* model) {
  TANDEM_ASSIGN_OR_RETURN(const hub::Resolved found, hub::ResolveModel(*model));
  *model = found.path;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ChooseDType(const std::string& directory, const std::string& asked) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<HostTensor> tensors, ReadModelTensors(directory));
  const bool is_bf16 = std::ranges::all_of(
      tensors, [](const HostTensor& tensor) { return tensor.spec.dtype == DType::kBF16; });
  if (asked == "bf16" && !is_bf16) {
    std::fprintf(stderr,
                 "note: the weights of %s are wider than bf16 and are rounded to the nearest bf16 "
                 "value, which loses most of a short training run; tandem export --dtype bf16 "
                 "rounds them as a push does\n",
                 directory.c_str());
  }
  return asked.empty() ? (is_bf16 ? "bf16" : "fp32") : asked;
}

absl::StatusOr<PromptInput> EncodeChat(const nlohmann::json& messages, bool add_generation_prompt,
                                       const Tokenizer& tokenizer) {
  PromptInput input;
  const std::string text = messages.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  TANDEM_ASSIGN_OR_RETURN(input.text, tokenizer.RenderChat(text, add_generation_prompt));
  TANDEM_ASSIGN_OR_RETURN(input.ids, tokenizer.Encode(input.text));
  return input;
}

absl::StatusOr<PromptInput> ReadPrompt(const nlohmann::json& line, const Tokenizer& tokenizer) {
  const int num_given = static_cast<int>(line.contains("prompt")) +
                        static_cast<int>(line.contains("messages")) +
                        static_cast<int>(line.contains("ids"));
  if (num_given != 1) {
    return InvalidArgument("want exactly one of \"prompt\", \"messages\" and \"ids\", got ",
                           num_given);
  }
  PromptInput input;
  if (line.contains("messages")) {
    TANDEM_ASSIGN_OR_RETURN(const bool generation, FlagField(line, "add_generation_prompt", true));
    return EncodeChat(line["messages"], generation, tokenizer);
  }
  if (line.contains("ids")) {
    TANDEM_ASSIGN_OR_RETURN(input.ids, IdsField(line, "ids"));
    return input;
  }
  TANDEM_ASSIGN_OR_RETURN(input.text, TextField(line, "prompt"));
  TANDEM_ASSIGN_OR_RETURN(input.ids, tokenizer.Encode(input.text));
  return input;
}

}  // namespace tandem::cli
