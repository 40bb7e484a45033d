#include "cli/model/sft_data.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/io/json_lines.h"
#include "common/base/status_macros.h"
#include "trainer/prompts/prompt_source.h"

namespace tandem::cli {
namespace {

// {"messages": [.., {"role": "assistant", "content": text}]} -> the same with the text as the
// answer.
void MoveLastReplyToAnswer(nlohmann::json& line) {
  if (line.contains("answer") || !line.contains("messages")) return;
  nlohmann::json& messages = line["messages"];
  if (!messages.is_array() || messages.size() < 2 || !messages.back().is_object()) return;
  if (messages.back().value("role", "") != "assistant") return;
  line["answer"] = messages.back().value("content", "");
  messages.erase(messages.size() - 1);
}

absl::StatusOr<SupervisedExample> ParseExample(nlohmann::json line, const Tokenizer& tokenizer,
                                               int32_t end_token, int64_t max_tokens) {
  MoveLastReplyToAnswer(line);
  TANDEM_ASSIGN_OR_RETURN(const trainer::PromptRow row,
                          trainer::ParsePromptRow(line.dump(), "the row", ""));
  std::string prompt = row.text;
  if (!row.messages_json.empty()) {
    TANDEM_ASSIGN_OR_RETURN(prompt, tokenizer.RenderChat(row.messages_json, true));
  } else if (tokenizer.has_chat_template()) {
    const nlohmann::json messages = {{{"role", "user"}, {"content", row.text}}};
    TANDEM_ASSIGN_OR_RETURN(prompt, tokenizer.RenderChat(messages.dump(), true));
  }
  SupervisedExample example;
  TANDEM_ASSIGN_OR_RETURN(example.prompt, tokenizer.Encode(prompt));
  TANDEM_ASSIGN_OR_RETURN(example.completion, tokenizer.Encode(row.answer));
  example.completion.push_back(end_token);
  const int64_t num_tokens =
      static_cast<int64_t>(example.prompt.size() + example.completion.size());
  if (example.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens");
  if (num_tokens > max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(num_tokens, " tokens are over the model's context of ", max_tokens));
  }
  return example;
}

}  // namespace

absl::StatusOr<std::vector<SupervisedExample>> ReadSupervisedExamples(const std::string& path,
                                                                      const Tokenizer& tokenizer,
                                                                      int32_t end_token,
                                                                      int64_t max_tokens) {
  TANDEM_ASSIGN_OR_RETURN(const auto reader, JsonLineReader::Open(path));
  std::vector<SupervisedExample> examples;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(auto line, reader->Next());
    if (!line.has_value()) break;
    auto example = ParseExample(*std::move(line), tokenizer, end_token, max_tokens);
    if (!example.ok()) return reader->At(example.status());
    examples.push_back(*std::move(example));
  }
  if (examples.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": no examples"));
  return examples;
}

}  // namespace tandem::cli
