#include "trainer/prompts/prompt_reader.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tables/row_reader.h"
#include "nlohmann/json.hpp"
#include "trainer/data/held_out.h"

namespace tandem::trainer {
namespace {

absl::Status WithPlaceOf(const std::string& place, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(place, ": ", status.message()));
}

absl::Status TooLong(const std::string& place, int64_t num_tokens, int64_t limit) {
  return InvalidArgument(
      place, ": the prompt has ", num_tokens, " tokens, limit ", limit,
      "; raise trainer.data.max_prompt_tokens or set trainer.data.over_length to drop");
}

}  // namespace

absl::StatusOr<experience::v1::Prompt> TokenisePrompt(const PromptRow& row,
                                                      const std::string& place, bool chat,
                                                      const Tokenizer& tokenizer) {
  experience::v1::Prompt prompt;
  prompt.set_answer(row.answer);
  if (!chat && row.text.empty()) {
    return InvalidArgument(
        place, ": a list of messages needs the chat template: set trainer.data.chat to true");
  }
  if (chat) {
    std::string messages = row.messages_json;
    if (messages.empty()) {
      messages = nlohmann::json::array({{{"role", "user"}, {"content", row.text}}}).dump();
    }
    absl::StatusOr<std::string> text =
        tokenizer.RenderChat(messages, /*add_generation_prompt=*/true, row.tools_json);
    if (!text.ok()) return WithPlaceOf(place, text.status());
    prompt.set_text(*std::move(text));
  } else {
    prompt.set_text(row.text);
  }
  const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(prompt.text());
  if (!ids.ok()) return WithPlaceOf(place, ids.status());
  if (ids->empty()) return InvalidArgument(place, ": the prompt has no tokens");
  prompt.mutable_token_ids()->Add(ids->begin(), ids->end());
  return prompt;
}

absl::StatusOr<ReadPrompts> ReadPromptsOf(const std::string& path, const DatasetPart& part,
                                          const DataOptions& options, int64_t first_index,
                                          const Tokenizer& tokenizer) {
  TANDEM_ASSIGN_OR_RETURN(const RowParser parser, RowParser::Create(options));
  TANDEM_ASSIGN_OR_RETURN(const auto rows, RowReader::Open(path, part));
  ReadPrompts prompts;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<TableRow> row, rows->Next());
    if (!row.has_value()) break;
    TANDEM_ASSIGN_OR_RETURN(const PromptRow parsed, parser.Parse(row->json, row->place));
    TANDEM_ASSIGN_OR_RETURN(experience::v1::Prompt prompt,
                            TokenisePrompt(parsed, row->place, options.chat, tokenizer));
    const int64_t num_tokens = prompt.token_ids_size();
    if (num_tokens > options.max_prompt_tokens) {
      if (options.over_length == OverLength::kRefuse) {
        return TooLong(row->place, num_tokens, options.max_prompt_tokens);
      }
      ++prompts.num_dropped;
      continue;
    }
    prompt.set_index(first_index + row->number);
    prompt.set_source_json(std::string(row->json));
    if (options.eval_share > 0 && IsHeldOut(parsed.identity, options.eval_share)) {
      prompts.held_out.push_back(std::move(prompt));
      continue;
    }
    prompts.kept.push_back(std::move(prompt));
    if (num_tokens <= prompts.longest_tokens) continue;
    prompts.longest_tokens = num_tokens;
    prompts.longest_place = row->place;
  }
  prompts.num_rows = rows->num_counted();
  if (!prompts.kept.empty()) return prompts;
  return InvalidArgument(
      path, ": no prompt (", prompts.num_rows, " lines, ", prompts.num_dropped, " over length",
      prompts.held_out.empty() ? "" : absl::StrCat(", ", prompts.held_out.size(), " held out"),
      ")");
}

}  // namespace tandem::trainer
