#include "rollout_server/http/prompt_fields.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "rollout_server/http/http_error.h"

namespace tandem::rollout {
namespace {

constexpr int kMostArgumentLevels = 32;

// The content of a message as a text: OpenAI's content parts are joined.
absl::StatusOr<Json> TextContent(const Json& content, const std::string& where) {
  if (content.is_string() || content.is_null()) return content;
  if (!content.is_array()) {
    return BadField(where, where + " is neither a text nor an array of content parts");
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const bool is_object = part.is_object();
    const std::string type =
        is_object && part.contains("type") && part["type"].is_string() ? part["type"] : Json("");
    if (!is_object || (type != "text" && type != "refusal") || !part.contains(type) ||
        !part[type].is_string()) {
      return BadField(where,
                      absl::StrCat(where, "[", i, "] is no text: this model reads text only"));
    }
    if (!text.empty()) text += "\n";
    text += part[type].get<std::string>();
  }
  return text;
}

// Templates want the arguments of a tool call as an object, where OpenAI's API has their JSON.
void OpenArguments(Json& message) {
  if (!message.contains("tool_calls") || !message["tool_calls"].is_array()) return;
  for (Json& call : message["tool_calls"]) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    Json& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    const std::string text = function["arguments"].get<std::string>();
    if (NestsDeeperThan(text, kMostArgumentLevels)) continue;
    Json arguments = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (arguments.is_object()) function["arguments"] = std::move(arguments);
  }
}

absl::StatusOr<Json> Messages(JsonFields& fields) {
  const Json* const given = fields.Find("messages");
  if (given == nullptr || !given->is_array() || given->empty()) {
    return BadField("messages", "messages is missing or no array of messages");
  }
  Json messages = *given;
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    const std::string where = absl::StrCat("messages[", i, "]");
    if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
      return BadField(where, where + " is no object with a text `role`");
    }
    if (message["role"] == "developer") message["role"] = "system";
    const Json content = message.contains("content") ? message["content"] : Json();
    TANDEM_ASSIGN_OR_RETURN(message["content"], TextContent(content, where + ".content"));
    if (message["content"].is_null()) {
      if (!message.contains("tool_calls")) {
        return BadField(where, where + " has no content");
      }
      message["content"] = "";
    }
    OpenArguments(message);
  }
  return messages;
}

// The tools as the template gets them; empty for none.
absl::StatusOr<std::string> Tools(JsonFields& fields) {
  const Json* const tools = fields.Find("tools");
  const Json* const choice = fields.Find("tool_choice");
  fields.Ignore({"parallel_tool_calls"});
  if (choice != nullptr && *choice != "none" && *choice != "auto") {
    return BadField("tool_choice", absl::StrCat("tool_choice is ", JsonText(*choice),
                                                ", want auto or none: a call cannot be forced"));
  }
  return OffersTools(fields) ? JsonText(*tools) : std::string();
}

// -1: the context; the last tokens stay.
void Truncate(std::optional<int64_t> most, int64_t context_tokens, std::vector<int32_t>* ids) {
  if (!most) return;
  const int64_t kept = std::min(*most < 0 ? context_tokens : *most, std::ssize(*ids));
  ids->erase(ids->begin(), ids->end() - kept);
}

}  // namespace

bool OffersTools(JsonFields& fields) {
  const Json* const tools = fields.Find("tools");
  const Json* const choice = fields.Find("tool_choice");
  return tools != nullptr && !tools->empty() && (choice == nullptr || *choice != "none");
}

int64_t PromptReader::LongestTokenBytes() const {
  std::call_once(measured_, [this] {
    for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
      const auto text = tokenizer_->Decode({&id, 1}, /*skip_special_tokens=*/false);
      if (text.ok()) longest_token_bytes_ = std::max(longest_token_bytes_, std::ssize(*text));
    }
  });
  return longest_token_bytes_;
}

absl::StatusOr<std::vector<int32_t>> PromptReader::Encode(std::string_view text,
                                                          bool add_special_tokens) const {
  // A text that is short enough for tokens of one byte need not be compared with the longest one.
  if (std::ssize(text) > context_tokens_ &&
      std::ssize(text) > context_tokens_ * LongestTokenBytes()) {
    return ContextExceeded(std::ssize(text) / LongestTokenBytes(), 0, context_tokens_);
  }
  return tokenizer_->Encode(text, add_special_tokens);
}

absl::StatusOr<std::vector<std::vector<int32_t>>> PromptReader::ReadPrompts(
    JsonFields& fields, const ModelFacts& facts) const {
  const Json* const prompt = fields.Find("prompt");
  const bool add_special_tokens = fields.Flag("add_special_tokens").value_or(true);
  const auto most = fields.Integer("truncate_prompt_tokens", -1, kMostTokens);
  TANDEM_RETURN_IF_ERROR(fields.status());
  constexpr char kWant[] = ", want a text, an array of texts, token ids or an array of those";
  if (prompt == nullptr) return BadField("prompt", absl::StrCat("prompt is missing", kWant));
  const bool many = prompt->is_array() && !prompt->empty() &&
                    (prompt->front().is_string() || prompt->front().is_array());
  const Json list = many ? *prompt : Json::array({*prompt});
  if (list.size() > kMaxJobPrompts) {
    return BadField("prompt", absl::StrCat("there are ", list.size(), " prompts, want at most ",
                                           kMaxJobPrompts, ": split the request"));
  }
  std::vector<std::vector<int32_t>> prompts;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = many ? absl::StrCat("prompt[", i, "]") : "prompt";
    if (list[i].is_string()) {
      auto ids = Encode(list[i].get_ref<const std::string&>(), add_special_tokens);
      if (!ids.ok()) return AboutField(where, ids.status());
      prompts.push_back(*std::move(ids));
    } else {
      const Json one = {{where, list[i]}};
      JsonFields inner(one);
      auto ids = inner.Ids(where, 0, facts.vocab_size - 1);
      TANDEM_RETURN_IF_ERROR(inner.status());
      if (!ids) return BadField(where, absl::StrCat(where, " is null", kWant));
      prompts.push_back(*std::move(ids));
    }
    Truncate(most, context_tokens_, &prompts.back());
    if (prompts.back().empty()) return BadField(where, where + " has no tokens");
  }
  return prompts;
}

absl::StatusOr<std::vector<int32_t>> PromptReader::ReadChat(JsonFields& fields) const {
  TANDEM_ASSIGN_OR_RETURN(const Json messages, Messages(fields));
  TANDEM_ASSIGN_OR_RETURN(const std::string tools, Tools(fields));
  const bool continues = fields.Flag("continue_final_message").value_or(false);
  const bool prompts = fields.Flag("add_generation_prompt").value_or(!continues);
  const bool add_special_tokens = fields.Flag("add_special_tokens").value_or(false);
  const auto most = fields.Integer("truncate_prompt_tokens", -1, kMostTokens);
  const Json* const variables = fields.Find("chat_template_kwargs");
  fields.Unsupported(
      "chat_template", [](const Json&) { return false; }, "the model's own template is used");
  fields.Unsupported(
      "documents", [](const Json& list) { return list.empty(); }, "");
  TANDEM_RETURN_IF_ERROR(fields.status());
  if (continues && prompts) {
    return BadField("continue_final_message",
                    "continue_final_message with add_generation_prompt: choose one");
  }
  auto text = tokenizer_->RenderChat(JsonText(messages), prompts, tools,
                                     variables == nullptr ? "" : JsonText(*variables));
  if (!text.ok()) return AboutField("messages", text.status());
  if (continues) {
    // The template's end of the last message is cut off.
    const std::string last = messages.back()["content"];
    const size_t at = last.empty() ? std::string::npos : text->rfind(last);
    if (at == std::string::npos) {
      return BadField("continue_final_message",
                      "the chat template does not show the last message as it is");
    }
    text->resize(at + last.size());
  }
  auto ids = Encode(*text, add_special_tokens);
  if (!ids.ok()) return AboutField("messages", ids.status());
  Truncate(most, context_tokens_, &*ids);
  if (ids->empty()) return BadField("messages", "the messages have no tokens");
  return *std::move(ids);
}

}  // namespace tandem::rollout
