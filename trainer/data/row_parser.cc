#include "trainer/data/row_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/foreign_json.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/options/nearest_name.h"

namespace tandem::trainer {
namespace {

// The order of members is kept: a chat template prints tools as they are written.
using nlohmann::ordered_json;

const std::vector<std::string> kRoles = {"prompt", "answer", "system_prompt", "tools"};

constexpr char kForms[] =
    "want {\"prompt\": text or messages, \"answer\": ..}, {\"messages\": [..], \"answer\": ..}, "
    "{\"question\": .., \"answer\": ..}, verl rows with reward_model.ground_truth, or another "
    "layout that data.format or data.columns says";

absl::Status Malformed(const std::string& place, const std::string& what) {
  return InvalidArgument(place, ": ", what, "; ", kForms);
}

// A message has a text, or no text and calls of tools.
bool IsMessages(const ordered_json& value) {
  const auto is_message = [](const ordered_json& message) {
    if (!message.is_object() || !message.value("role", ordered_json()).is_string()) return false;
    const ordered_json content = message.value("content", ordered_json());
    return content.is_string() || (content.is_null() && message.contains("tool_calls"));
  };
  return value.is_array() && !value.empty() && std::ranges::all_of(value, is_message);
}

bool IsTools(const ordered_json& value) {
  return value.is_array() && !value.empty() &&
         std::ranges::all_of(value, [](const ordered_json& tool) { return tool.is_object(); });
}

// Tables give every object of a column the members of all, null where it has none. A template takes
// a member that is null for one that is there.
void DropNulls(ordered_json& value) {
  if (value.is_array()) {
    for (ordered_json& element : value) DropNulls(element);
  }
  if (!value.is_object()) return;
  for (auto member = value.begin(); member != value.end();) {
    if (member.value().is_null()) {
      member = value.erase(member);
    } else {
      DropNulls(member.value());
      ++member;
    }
  }
}

std::string Dump(const ordered_json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

std::string IdentityOf(const ordered_json& messages) {
  std::string identity;
  for (const ordered_json& message : messages) {
    const ordered_json content = message.value("content", ordered_json());
    absl::StrAppend(&identity, message["role"].get<std::string>(), "\x1f",
                    content.is_string() ? content.get<std::string>() : Dump(message), "\x1e");
  }
  return identity;
}

ordered_json UserMessage(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

// Text and numbers as they stand, everything else as JSON.
std::string TextOf(const ordered_json& value) {
  return value.is_string() ? value.get<std::string>() : Dump(value);
}

}  // namespace

absl::StatusOr<RowParser> RowParser::Create(const DataOptions& options, bool needs_answer) {
  RowParser parser(options, needs_answer);
  for (const auto& [role, column] : options.columns) {
    if (std::ranges::find(kRoles, role) != kRoles.end()) continue;
    const std::string nearest = NearestIfClose(role, kRoles);
    return InvalidArgument("data.columns: no '", role, "'; want ", absl::StrJoin(kRoles, ", "),
                           nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?"));
  }
  const bool has_tools = !options.tools_file.empty() || !options.tools_json.empty();
  if (!options.chat && (has_tools || !options.system_prompt.empty())) {
    return InvalidArgument(
        "data.system_prompt, data.tools_file and the tools of an environment go through the "
        "model's chat template: set data.chat to true");
  }
  TANDEM_RETURN_IF_ERROR(parser.ReadTemplate());
  TANDEM_RETURN_IF_ERROR(parser.ReadTools());
  return parser;
}

absl::Status RowParser::ReadTemplate() {
  const std::string& text = options_.text_template;
  bool has_column = false;
  TemplatePart part;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{' && text[i] != '}') {
      part.text += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == text[i]) {
      part.text += text[i++];
    } else {
      const size_t end = text[i] == '{' ? text.find('}', i) : std::string::npos;
      if (end == std::string::npos || end == i + 1) {
        return InvalidArgument("data.template: the brace at byte ", i,
                               " belongs to no {COLUMN}; a brace itself is written {{ or }}");
      }
      part.column = text.substr(i + 1, end - i - 1);
      has_column = true;
      template_.push_back(std::exchange(part, {}));
      i = end;
    }
  }
  if (text.empty()) return absl::OkStatus();
  template_.push_back(std::move(part));
  if (has_column) return absl::OkStatus();
  return InvalidArgument("data.template has no {COLUMN}: every prompt would be the same");
}

absl::Status RowParser::ReadTools() {
  tools_json_ = options_.tools_json;
  const std::string& path = options_.tools_file;
  if (path.empty()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const ordered_json tools = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (tools.is_discarded()) return InvalidArgument(path, ": ", JsonFault(text));
  if (!IsTools(tools)) {
    return InvalidArgument(path,
                           ": want a JSON array of tools, each an object such as {\"type\": "
                           "\"function\", \"function\": {\"name\": .., \"parameters\": ..}}");
  }
  tools_json_ = Dump(tools);
  return absl::OkStatus();
}

std::optional<std::string> RowParser::NamedColumn(const std::string& role) const {
  const auto found =
      std::ranges::find(options_.columns, role, [](const auto& entry) { return entry.first; });
  if (found == options_.columns.end()) return std::nullopt;
  return found->second;
}

const LayoutColumns& RowParser::UsualColumns(const ordered_json& row) const {
  return options_.format == DataFormat::kAuto ? RecognisedColumns(row) : ColumnsOf(options_.format);
}

const ordered_json* RowParser::Find(const ordered_json& row, const std::string& role,
                                    const std::vector<std::string>& usual,
                                    std::string* name) const {
  const auto named = NamedColumn(role);
  const std::vector<std::string> candidates = named ? std::vector{*named} : usual;
  for (const std::string& candidate : candidates) {
    *name = candidate;
    if (const ordered_json* const value = FindColumn(row, candidate)) return value;
  }
  *name = candidates.front();
  return nullptr;
}

absl::Status RowParser::Missing(const ordered_json& row, const std::string& place,
                                const std::string& role, const std::string& column) const {
  if (NamedColumn(role)) {
    return InvalidArgument(place, ": ", NoColumn(row, column), " (data.columns.", role, ")");
  }
  if (options_.format != DataFormat::kAuto) {
    return InvalidArgument(place, ": ", NoColumn(row, column), " (data.format ",
                           DataFormatName(options_.format), "); data.columns names others");
  }
  std::vector<std::string> names;
  for (const auto& [name, value] : row.items()) names.push_back(name);
  const std::vector<std::string>& usual =
      role == "answer" ? RecognisedColumns(row).answer : RecognisedColumns(row).prompt;
  std::string nearest;
  for (const std::string& wanted : usual) {
    if (nearest.empty()) nearest = NearestIfClose(wanted, names);
  }
  const std::string there = absl::StrCat(
      "; the columns are ", absl::StrJoin(names, ", "),
      nearest.empty() ? ""
                      : absl::StrCat("; if \"", nearest, "\" is the one, set data.columns: {", role,
                                     ": ", nearest, "}"));
  if (role == "answer") {
    return Malformed(place, absl::StrCat("no \"answer\" and no \"reward_model\": "
                                         "{\"ground_truth\": ..}",
                                         there));
  }
  return Malformed(place, absl::StrCat("no \"prompt\", \"messages\" or \"question\"", there));
}

absl::StatusOr<std::string> RowParser::FillTemplate(const ordered_json& row,
                                                    const std::string& place) const {
  std::string text;
  for (const TemplatePart& part : template_) {
    text += part.text;
    if (part.column.empty()) continue;
    const ordered_json* const value = FindColumn(row, part.column);
    if (value == nullptr) {
      return InvalidArgument(place, ": ", NoColumn(row, part.column), " (data.template)");
    }
    text += TextOf(*value);
  }
  return text;
}

// Sets the prompt. Messages that end with the assistant's lose that one to `row`'s answer, if it has
// none.
absl::Status RowParser::FillPrompt(ordered_json& row, const std::string& place,
                                   PromptRow& parsed) const {
  if (!template_.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::string text, FillTemplate(row, place));
    if (text.empty()) return InvalidArgument(place, ": data.template gives an empty text");
    parsed.prompt_column = "template";
    parsed.text = text + options_.suffix;
    parsed.identity = IdentityOf(ordered_json::array({UserMessage(text)}));
    return absl::OkStatus();
  }
  const ordered_json* value = Find(row, "prompt", UsualColumns(row).prompt, &parsed.prompt_column);
  if (value == nullptr) return Missing(row, place, "prompt", parsed.prompt_column);
  if (IsMessages(*value)) {
    ordered_json messages = *value;
    DropNulls(messages);
    const bool has_reply = messages.size() > 1 && messages.back()["role"] == "assistant" &&
                           messages.back().value("content", ordered_json()).is_string();
    if (has_reply && !parsed.has_answer && NamedColumn("answer") == std::nullopt) {
      parsed.answer = messages.back()["content"].get<std::string>();
      parsed.has_answer = true;
      parsed.answer_column = parsed.prompt_column;
      messages.erase(messages.size() - 1);
    }
    parsed.messages_json = Dump(messages);
    parsed.identity = IdentityOf(messages);
    return absl::OkStatus();
  }
  const bool is_text = value->is_string() && parsed.prompt_column != "messages";
  if (!is_text || value->get<std::string>().empty()) {
    return Malformed(place, absl::StrCat("\"", parsed.prompt_column,
                                         "\" is neither text nor a list of {\"role\", "
                                         "\"content\"} messages, or is empty"));
  }
  const auto text = value->get<std::string>();
  parsed.text = text + options_.suffix;
  parsed.identity = IdentityOf(ordered_json::array({UserMessage(text)}));
  return absl::OkStatus();
}

absl::Status RowParser::FillAnswer(const ordered_json& row, const std::string& place,
                                   PromptRow& parsed) const {
  if (NamedColumn("answer") == "") return absl::OkStatus();  // rows have none
  const ordered_json* const answer =
      Find(row, "answer", UsualColumns(row).answer, &parsed.answer_column);
  if (answer == nullptr) {
    parsed.has_answer = false;
    return absl::OkStatus();
  }
  if (answer->is_string()) {
    parsed.answer = answer->get<std::string>();
  } else if (answer->is_number() || answer->is_boolean()) {
    parsed.answer = answer->dump();
  } else {
    return Malformed(
        place, absl::StrCat("the answer is ", answer->type_name(), ", want text or a number"));
  }
  return absl::OkStatus();
}

absl::Status RowParser::FillTools(const ordered_json& row, const std::string& place,
                                  PromptRow& parsed) const {
  parsed.tools_json = tools_json_;
  std::string column;
  const ordered_json* const value = Find(row, "tools", {"tools"}, &column);
  const bool is_named = NamedColumn("tools").has_value();
  if (value == nullptr) return absl::OkStatus();
  // A table keeps tools as text where their schemas differ.
  ordered_json tools =
      value->is_string() ? ordered_json::parse(value->get<std::string>(), nullptr, false) : *value;
  if (IsTools(tools)) {
    DropNulls(tools);
    parsed.tools_json = Dump(tools);
  } else if (is_named && !(tools.is_array() && tools.empty())) {
    return InvalidArgument(
        place, ": \"", column,
        "\" (data.columns.tools) is no list of objects, nor the JSON text of one");
  }
  return absl::OkStatus();
}

absl::Status RowParser::AddSystemPrompt(const ordered_json& row, const std::string& place,
                                        PromptRow& parsed) const {
  std::string system_prompt = options_.system_prompt;
  if (const auto column = NamedColumn("system_prompt")) {
    const ordered_json* const value = FindColumn(row, *column);
    if (value != nullptr && !value->is_string()) {
      return InvalidArgument(place, ": \"", *column, "\" (data.columns.system_prompt) is ",
                             value->type_name(), ", want text");
    }
    if (value == nullptr && row.find(*column) == row.end()) {
      return Missing(row, place, "system_prompt", *column);
    }
    if (value != nullptr) system_prompt = value->get<std::string>();
  }
  if (system_prompt.empty()) return absl::OkStatus();
  ordered_json messages = parsed.messages_json.empty()
                              ? ordered_json::array({UserMessage(parsed.text)})
                              : ordered_json::parse(parsed.messages_json);
  if (messages[0]["role"] == "system") return absl::OkStatus();
  messages.insert(messages.begin(), ordered_json{{"role", "system"}, {"content", system_prompt}});
  parsed.text.clear();
  parsed.messages_json = Dump(messages);
  return absl::OkStatus();
}

absl::StatusOr<PromptRow> RowParser::Parse(std::string_view row_json,
                                           const std::string& place) const {
  ordered_json row = ordered_json::parse(row_json, nullptr, /*allow_exceptions=*/false);
  if (row.is_discarded()) return Malformed(place, JsonFault(row_json));
  if (!row.is_object()) {
    return Malformed(place, absl::StrCat("is ", row.type_name(), ", not an object"));
  }
  PromptRow parsed;
  TANDEM_RETURN_IF_ERROR(FillAnswer(row, place, parsed));
  const std::string answer_column = parsed.answer_column;
  TANDEM_RETURN_IF_ERROR(FillPrompt(row, place, parsed));
  if (!parsed.has_answer && needs_answer_) return Missing(row, place, "answer", answer_column);
  if (!parsed.has_answer) parsed.answer_column.clear();
  TANDEM_RETURN_IF_ERROR(FillTools(row, place, parsed));
  TANDEM_RETURN_IF_ERROR(AddSystemPrompt(row, place, parsed));
  return parsed;
}

absl::StatusOr<PromptRow> ParsePromptRow(std::string_view row_json, const std::string& place,
                                         const std::string& suffix) {
  TANDEM_ASSIGN_OR_RETURN(const RowParser parser, RowParser::Create({.suffix = suffix}));
  return parser.Parse(row_json, place);
}

}  // namespace tandem::trainer
