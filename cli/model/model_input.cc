#include "cli/model/model_input.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "common/base/status_macros.h"
#include "common/hub/resolve.h"
#include "common/lora/adapted_model.h"
#include "common/lora/peft_files.h"
#include "common/model/safetensors.h"

namespace tandem::cli {

namespace {

std::string WhatAModelIs(const std::string& named) {
  std::string text =
      "; a model is a Hugging Face directory with config.json, tokenizer.json and "
      "model.safetensors (or shards with model.safetensors.index.json)";
  if (absl::StrContains(named, "smollm2")) {
    absl::StrAppend(&text,
                    "; `make setup` in a checkout, or python3 -m tandem_rl.demo_model --out DIR, "
                    "makes that of SmolLM2-135M-Instruct");
  }
  return text;
}

}  // namespace

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
    if (missing.empty() && IsPeftDirectory(directory)) return BaseDirectory(directory).status();
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
  if (IsPeftDirectory(directory)) {
    return NotFound("model ", directory, ": ", missing,
                    "; it holds an adapter alone, and tandem export ", directory,
                    " --out DIR merges it into its base");
  }
  return NotFound("model ", directory, ": ", missing, WhatAModelIs(directory));
}

absl::Status FindModel(std::string* model) {
  const auto resolved = hub::ResolveModel(*model);
  if (absl::IsNotFound(resolved.status())) {
    return NotFound(resolved.status().message(), WhatAModelIs(*model));
  }
  TANDEM_RETURN_IF_ERROR(resolved.status());
  const hub::Resolved& found = *resolved;
  *model = found.path;
  const absl::Status checked = CheckModelDirectory(found.path);
  if (checked.ok() || found.name.empty()) return checked;
  for (const std::string& file : found.known_absent) {
    if (file != "config.json" && file != "tokenizer.json") continue;
    return NotFound(checked.message(), "; ", found.Pinned(), " has no ", file,
                    ": look for another revision or a copy that has it");
  }
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
  TANDEM_ASSIGN_OR_RETURN(const std::vector<HostTensor> tensors, ReadAdaptedTensors(directory));
  const bool is_bf16 = std::ranges::all_of(  // merged weights are fp32, whatever the base is
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
