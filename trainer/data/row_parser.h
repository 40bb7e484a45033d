// RowParser: a row of a data set as a prompt and an answer, before the tokenizer. Which columns it
// reads, what stands before the prompt and which tools the model is told of are options
// (data_options.h). PromptSource, the tools and `tandem sft` read rows through it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "trainer/data/data_options.h"

namespace tandem::trainer {

// One row, before the tokenizer.
struct PromptRow {
  std::string text;           // raw text, or ...
  std::string messages_json;  // ... messages for the chat template; exactly one is not empty
  std::string tools_json;     // a JSON array; empty: none
  std::string answer;
  bool has_answer = true;

  // The prompt itself, without system prompt and suffix: what makes two rows the same prompt. A text
  // is the same as one message of the user.
  std::string identity;
  std::string prompt_column, answer_column;  // where they were; an empty one: nowhere
};

// Immutable. Thread-safe.
class RowParser {
 public:
  // Reads the file of tools, if any. With `needs_answer` false a row without an answer is no error.
  //   INVALID_ARGUMENT  an unknown role in `columns`; a template with an open brace or without a
  //                     column; a file of tools that is no JSON array of objects; a system prompt or
  //                     tools without the chat template
  //   errors of ReadFile for the file of tools
  static absl::StatusOr<RowParser> Create(const DataOptions& options, bool needs_answer = true);

  // Parses one row. `place` ("FILE:LINE") opens error messages.
  //   INVALID_ARGUMENT  not a JSON object; no column for the prompt or the answer, with the columns
  //                     that there are; or a value of the wrong type, with what was expected
  absl::StatusOr<PromptRow> Parse(std::string_view row_json, const std::string& place) const;

 private:
  // A part of the template: text, then the value of a column (empty: none).
  struct TemplatePart {
    std::string text, column;
  };

  RowParser(const DataOptions& options, bool needs_answer)
      : options_(options), needs_answer_(needs_answer) {}
  absl::Status ReadTemplate();
  absl::Status ReadTools();

  // The column for a role: the one that the options name, else the first of `usual` that the row
  // has. Null if it has none; `name` is then the one that was looked for.
  const nlohmann::ordered_json* Find(const nlohmann::ordered_json& row, const std::string& role,
                                     const std::vector<std::string>& usual,
                                     std::string* name) const;
  std::optional<std::string> NamedColumn(const std::string& role) const;
  const LayoutColumns& UsualColumns(const nlohmann::ordered_json& row) const;

  absl::Status FillPrompt(nlohmann::ordered_json& row, const std::string& place,
                          PromptRow& parsed) const;
  absl::Status FillAnswer(const nlohmann::ordered_json& row, const std::string& place,
                          PromptRow& parsed) const;
  absl::Status FillTools(const nlohmann::ordered_json& row, const std::string& place,
                         PromptRow& parsed) const;
  absl::Status AddSystemPrompt(const nlohmann::ordered_json& row, const std::string& place,
                               PromptRow& parsed) const;
  absl::StatusOr<std::string> FillTemplate(const nlohmann::ordered_json& row,
                                           const std::string& place) const;
  absl::Status Missing(const nlohmann::ordered_json& row, const std::string& place,
                       const std::string& role, const std::string& column) const;

  DataOptions options_;
  bool needs_answer_;
  std::vector<TemplatePart> template_;
  std::string tools_json_;
};

// As RowParser with the usual options, for rows that are recognised by their columns.
absl::StatusOr<PromptRow> ParsePromptRow(std::string_view row_json, const std::string& place,
                                         const std::string& suffix);

}  // namespace tandem::trainer
