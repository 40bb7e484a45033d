// Checks of model directories, and the prompts of input lines, for the tools that take both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

// The help of --model of commands that run a model.
inline constexpr char kModelFlagHelp[] =
    "Hugging Face directory, or a name on the Hub that `tandem fetch` got";

// Checks that `directory` has a config, a tokenizer and weights, before anything is loaded.
//   NOT_FOUND  there is no such directory, or a file is missing; the message says what a model
//              directory holds and, for the demo's model, how to get it
absl::Status CheckModelDirectory(const std::string& directory);

// Replaces the name of a model on the Hugging Face Hub by its directory in the cache of this machine
// (common/hub/resolve.h), and checks the directory as above. Every command calls it on what the user
// named as a model, before it reads anything there. A directory that exists stays as it is.
//   NOT_FOUND  as CheckModelDirectory and hub::ResolveModel, whose message says how to fetch it
absl::Status FindModel(std::string* model);

// The same for a command that reads only the tokenizer.
absl::Status FindTokenizer(std::string* model);

// Returns the dtype to compute in: `asked` ("fp32", "bf16") if it is not empty, else that of the
// directory's weights, which is "bf16" if all tensors are bf16 and otherwise "fp32", which holds
// all other dtypes exactly. Warns on stderr if wider weights are rounded to the nearest bf16 value.
// Errors are those of ReadModelTensors.
absl::StatusOr<std::string> ChooseDType(const std::string& directory, const std::string& asked);

struct PromptInput {
  std::string text;  // the text that was tokenised; empty for a line with ids
  std::vector<int32_t> ids;
};

// The prompt of a line {"prompt": text} | {"messages": [...], "add_generation_prompt"?} | {"ids"}.
//   INVALID_ARGUMENT  the line has none or several of them, or as Tokenizer::Encode
absl::StatusOr<PromptInput> ReadPrompt(const nlohmann::json& line, const Tokenizer& tokenizer);

// Renders messages through the chat template and tokenises the result.
absl::StatusOr<PromptInput> EncodeChat(const nlohmann::json& messages, bool add_generation_prompt,
                                       const Tokenizer& tokenizer);

}  // namespace tandem::cli
