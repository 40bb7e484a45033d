// What the plain tools share about models: a directory that is one, and the ids of an input line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

// Says early, and in one sentence, what is missing.
//   NOT_FOUND  no such directory, or no config.json or tokenizer.json in it (with what a model
//              directory holds and, for the demo's model, how to get it)
absl::Status CheckModelDirectory(const std::string& directory);

// The dtype to compute in: `asked` ("fp32", "bf16") where it is not empty, else that of the
// directory's weights: "bf16" when every tensor is, else "fp32", which holds all others exactly.
// Says on stderr what is lost where bf16 is asked of wider weights: they are rounded to nearest.
//   errors of reading the weights
absl::StatusOr<std::string> ChooseDType(const std::string& directory, const std::string& asked);

struct PromptInput {
  std::string text;  // what was tokenised; empty for a line with ids
  std::vector<int32_t> ids;
};

// The prompt of a line {"prompt": text} | {"messages": [...], "add_generation_prompt"?} | {"ids"}.
//   INVALID_ARGUMENT  none or several of them; the tokenizer's errors
absl::StatusOr<PromptInput> ReadPrompt(const nlohmann::json& line, const Tokenizer& tokenizer);

// Renders messages through the chat template and tokenises the result.
absl::StatusOr<PromptInput> EncodeChat(const nlohmann::json& messages, bool add_generation_prompt,
                                       const Tokenizer& tokenizer);

}  // namespace tandem::cli
