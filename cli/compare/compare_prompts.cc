#include "cli/compare/compare_prompts.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "cli/model/model_input.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

absl::StatusOr<std::vector<int32_t>> PromptOf(const std::string& line, const Tokenizer& tokenizer) {
  if (!line.starts_with('{')) return tokenizer.Encode(line);
  constexpr int kDeepest = 64;
  if (NestsDeeperThan(line, kDeepest)) return absl::InvalidArgumentError("it nests too deep");
  nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("expected a JSON object");
  const auto ids = object.find("token_ids");
  if (ids != object.end()) object["ids"] = *ids;
  TANDEM_ASSIGN_OR_RETURN(PromptInput input, ReadPrompt(object, tokenizer));
  return std::move(input.ids);
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadComparePrompts(const std::string& path,
                                                                     const Tokenizer& tokenizer) {
  constexpr char kExpected[] =
      "expected a file of prompts, a line each: text, or JSON with prompt, messages or token_ids";
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    return InvalidArgument("--prompts ", path, ": ", kExpected, "; found a directory");
  }
  std::ifstream file(path);
  if (!file) return NotFound("--prompts ", path, ": ", kExpected, "; found ", std::strerror(errno));
  std::vector<std::vector<int32_t>> prompts;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    absl::StatusOr<std::vector<int32_t>> prompt = PromptOf(line, tokenizer);
    if (prompt.ok() && prompt->empty()) prompt = InvalidArgument("the prompt has no tokens");
    if (!prompt.ok()) {
      return absl::Status(prompt.status().code(),
                          absl::StrCat(path, ":", number, ": ", prompt.status().message()));
    }
    prompts.push_back(*std::move(prompt));
  }
  if (prompts.empty()) {
    return InvalidArgument("--prompts ", path, ": there is no prompt in it; ", kExpected,
                           "; found ", number == 0 ? "an empty file" : "empty lines only");
  }
  return prompts;
}

}  // namespace tandem::cli
