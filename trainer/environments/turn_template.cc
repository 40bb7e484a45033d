#include "trainer/environments/turn_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/status_macros.h"

namespace tandem::trainer {
namespace {

using nlohmann::json;

absl::StatusOr<json> ParseMessages(std::string_view messages, const char* what) {
  json parsed = json::parse(messages, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_array()) return parsed;
  return InvalidArgument(what, ": want a JSON array of messages");
}

// A text that stands nowhere in `messages`.
std::string MarkerFor(const std::string& messages) {
  std::string marker = "TurnOfTheModel";
  while (messages.find(marker) != std::string::npos) marker += "X";
  return marker;
}

}  // namespace

absl::StatusOr<TurnTemplate> TurnTemplate::Create(const Tokenizer* tokenizer,
                                                  const std::vector<int32_t>& end_ids) {
  TurnTemplate made(tokenizer);
  for (const int32_t id : end_ids) {
    if (id < 0 || id >= tokenizer->vocab_size()) continue;
    TANDEM_ASSIGN_OR_RETURN(std::string text, tokenizer->Decode(std::vector{id}, false));
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> again, tokenizer->Encode(text));
    if (again == std::vector{id}) made.end_tokens_.push_back({id, std::move(text)});
  }
  if (made.end_tokens_.empty()) {
    return InvalidArgument("none of the model's ", end_ids.size(),
                           " end tokens is a token of its own in the tokenizer: turns have no end "
                           "that a template could be cut at");
  }
  TANDEM_RETURN_IF_ERROR(made.IdsAfter(R"([{"role":"user","content":"a"}])",
                                       R"([{"role":"user","content":"b"}])", true)
                             .status());
  return made;
}

absl::StatusOr<std::vector<int32_t>> TurnTemplate::IdsAfter(std::string_view before,
                                                            std::string_view after,
                                                            bool ended_by_token) const {
  TANDEM_ASSIGN_OR_RETURN(json messages, ParseMessages(before, "messages before the turn"));
  TANDEM_ASSIGN_OR_RETURN(const json answers, ParseMessages(after, "messages after the turn"));
  if (answers.empty()) return InvalidArgument("no message follows the turn");
  const std::string marker = MarkerFor(std::string(before) + std::string(after));
  messages.push_back({{"role", "assistant"}, {"content", marker}});
  messages.insert(messages.end(), answers.begin(), answers.end());
  TANDEM_ASSIGN_OR_RETURN(const std::string text,
                          tokenizer_->RenderChat(messages.dump(), /*add_generation_prompt=*/true));
  const size_t turn = text.rfind(marker);
  if (turn == std::string::npos) {
    return InvalidArgument(
        "the chat template does not show the assistant message before the last messages: several "
        "turns need one that does");
  }
  const EndToken* end = nullptr;
  size_t joint = std::string::npos;
  for (const EndToken& token : end_tokens_) {
    const size_t at = text.find(token.text, turn + marker.size());
    if (at < joint) {
      joint = at;
      end = &token;
    }
  }
  if (end == nullptr) {
    return InvalidArgument("the chat template ends an assistant message with none of the model's ",
                           "end tokens (", end_tokens_.front().text,
                           ", ..): name the token that it does end with as eos_token_id in the "
                           "model's generation_config.json or config.json");
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                          tokenizer_->Encode(std::string_view(text).substr(joint)));
  if (ids.empty() || ids.front() != end->id) {
    return Internal("the tokenizer does not begin with the end token that it was given: ",
                    end->text);
  }
  if (ended_by_token) ids.erase(ids.begin());
  return ids;
}

}  // namespace tandem::trainer
