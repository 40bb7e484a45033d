#include "trainer/preferences/preference_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/foreign_json.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"

// Each form is brought to a prompt and one or two completions. A completion that is a list of
// messages is cut into its last message, which must be the assistant's, and those before it.
namespace tandem::trainer {
namespace {

using nlohmann::json;

constexpr int kMaxNesting = 64;
constexpr std::string_view kHuman = "\n\nHuman:", kAssistant = "\n\nAssistant:";
constexpr char kRowForms[] =
    "want {\"prompt\": .., \"chosen\": .., \"rejected\": ..}, {\"chosen\": messages, \"rejected\": "
    "messages}, {\"chosen\": \"\\n\\nHuman: ..\", \"rejected\": ..}, or {\"prompt\": .., "
    "\"completion\": .., \"label\": true or false}";

absl::Status WrongForm(const std::string& place, std::string_view what) {
  return InvalidArgument(place, ": ", what, "; ", kRowForms);
}

bool Has(const json& row, const char* key) { return row.contains(key) && !row[key].is_null(); }

// Whether there is nothing but white space.
bool IsBlankText(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  return text.substr(begin, text.find_last_not_of(" \t\r\n") + 1 - begin);
}

// A prompt or a completion: messages, or a text.
struct Side {
  std::string text;
  json messages = json::array();
};

absl::Status CheckMessage(const json& message, const std::string& where) {
  if (!message.is_object() || !message.value("role", json()).is_string() ||
      !message.value("content", json()).is_string()) {
    return InvalidArgument(where, " is not {\"role\": text, \"content\": text}");
  }
  for (const char* key : {"tool_calls", "reasoning_content"}) {
    if (!Has(message, key)) continue;
    return InvalidArgument(where, " has \"", key,
                           "\", which would not be learned: write it into \"content\"");
  }
  return absl::OkStatus();
}

absl::StatusOr<Side> ReadSide(const json& row, const char* key, const std::string& place) {
  if (!Has(row, key)) return WrongForm(place, absl::StrCat("no \"", key, "\""));
  const json& value = row[key];
  if (value.is_string()) return Side{.text = value.get<std::string>()};
  if (!value.is_array() || value.empty()) {
    return WrongForm(place, absl::StrCat("\"", key, "\" is ", value.empty() ? "an empty " : "",
                                         value.type_name(), ", not text or a list of messages"));
  }
  for (size_t i = 0; i < value.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(
        CheckMessage(value[i], absl::StrCat(place, ": message ", i, " of \"", key, "\"")));
  }
  return Side{.messages = value};
}

// Takes the last message off, which must be the assistant's.
absl::StatusOr<std::string> TakeReply(Side& side, const char* key, const std::string& place) {
  const json last = side.messages.back();
  if (last["role"] != "assistant") {
    return InvalidArgument(place, ": \"", key, "\" ends with a message of the ",
                           last["role"].get<std::string>(), ", want one of the assistant");
  }
  side.messages.erase(side.messages.size() - 1);
  return last["content"].get<std::string>();
}

absl::Status DifferentPrompts(const std::string& place) {
  return FailedPrecondition(place,
                            ": \"chosen\" and \"rejected\" answer different prompts: all but the "
                            "last message of each must be the same");
}

// The turns of "\n\nHuman: ..\n\nAssistant: .." as messages; empty if the text does not start so.
json DialogueMessages(std::string_view text) {
  json messages = json::array();
  while (text.starts_with(kHuman) || text.starts_with(kAssistant)) {
    const bool human = text.starts_with(kHuman);
    text.remove_prefix(human ? kHuman.size() : kAssistant.size());
    const size_t end = std::min({text.find(kHuman), text.find(kAssistant), text.size()});
    messages.push_back({{"role", human ? "user" : "assistant"},
                        {"content", std::string(Trimmed(text.substr(0, end)))}});
    text.remove_prefix(end);
  }
  return messages;
}

// Sets the prompt of `row` from "prompt", and from the messages before the reply, which may repeat
// it.
absl::Status SetPrompt(const Side& prompt, const json& repeated, const std::string& place,
                       PreferenceRow& row) {
  if (!repeated.empty()) {
    const bool has_text = std::ranges::any_of(repeated, [&](const json& message) {
      return Trimmed(message["content"].get<std::string>()) == Trimmed(prompt.text);
    });
    if (prompt.messages.empty() ? !has_text : prompt.messages != repeated) {
      return InvalidArgument(place,
                             ": the messages before the last one are not the \"prompt\": leave out "
                             "either");
    }
    row.prompt_messages = repeated.dump();
    return absl::OkStatus();
  }
  if (!prompt.messages.empty()) {
    row.prompt_messages = prompt.messages.dump();
    return absl::OkStatus();
  }
  if (IsBlankText(prompt.text)) return InvalidArgument(place, ": the prompt is blank");
  row.prompt_text = prompt.text;
  if (prompt.text.starts_with(kHuman) && prompt.text.ends_with(kAssistant)) {
    json messages = DialogueMessages(prompt.text);
    messages.erase(messages.size() - 1);  // the reply, which is blank here
    row.prompt_messages = messages.dump();
  }
  return absl::OkStatus();
}

// Replaces texts that are whole dialogues by their messages, and keeps the text before the last
// reply.
absl::Status ReadDialogue(Side& chosen, Side& rejected, const std::string& place,
                          PreferenceRow& row) {
  chosen.messages = DialogueMessages(chosen.text);
  rejected.messages = DialogueMessages(rejected.text);
  if (chosen.messages.empty() || rejected.messages.empty()) {
    return WrongForm(place, "no \"prompt\", and the sides are neither messages nor dialogues");
  }
  row.prompt_text = chosen.text.substr(0, chosen.text.rfind(kAssistant) + kAssistant.size());
  return absl::OkStatus();
}

absl::StatusOr<std::optional<double>> ReadNumber(const json& row, const char* key,
                                                 const std::string& place) {
  if (!Has(row, key)) return std::nullopt;
  const json& value = row[key];
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    return InvalidArgument(place, ": \"", key, "\" is ", value.dump(), ", want a finite number");
  }
  return value.get<double>();
}

absl::Status ReadNumbers(const json& input, const std::string& place, PreferenceRow& row) {
  TANDEM_ASSIGN_OR_RETURN(row.margin, ReadNumber(input, "margin", place));
  TANDEM_ASSIGN_OR_RETURN(row.score_chosen, ReadNumber(input, "score_chosen", place));
  TANDEM_ASSIGN_OR_RETURN(row.score_rejected, ReadNumber(input, "score_rejected", place));
  if (row.score_chosen.has_value() != row.score_rejected.has_value()) {
    return InvalidArgument(place,
                           ": only one of \"score_chosen\" and \"score_rejected\": give both "
                           "or neither");
  }
  return absl::OkStatus();
}

absl::StatusOr<PreferenceRow> ReadPair(const json& input, const std::string& place) {
  PreferenceRow row;
  TANDEM_ASSIGN_OR_RETURN(Side chosen, ReadSide(input, "chosen", place));
  TANDEM_ASSIGN_OR_RETURN(Side rejected, ReadSide(input, "rejected", place));
  TANDEM_RETURN_IF_ERROR(ReadNumbers(input, place, row));
  if (chosen.messages.empty() != rejected.messages.empty()) {
    return WrongForm(place, "one of \"chosen\" and \"rejected\" is text and the other messages");
  }
  const bool has_prompt = Has(input, "prompt");
  if (!has_prompt && chosen.messages.empty()) {
    TANDEM_RETURN_IF_ERROR(ReadDialogue(chosen, rejected, place, row));
  }
  row.chosen = chosen.text;
  row.rejected = rejected.text;
  if (!chosen.messages.empty()) {
    TANDEM_ASSIGN_OR_RETURN(row.chosen, TakeReply(chosen, "chosen", place));
    TANDEM_ASSIGN_OR_RETURN(row.rejected, TakeReply(rejected, "rejected", place));
    if (chosen.messages != rejected.messages) return DifferentPrompts(place);
  }
  if (has_prompt) {
    TANDEM_ASSIGN_OR_RETURN(const Side prompt, ReadSide(input, "prompt", place));
    TANDEM_RETURN_IF_ERROR(SetPrompt(prompt, chosen.messages, place, row));
  } else if (chosen.messages.empty()) {
    return WrongForm(place, "no \"prompt\", and no message before the last one");
  } else {
    row.prompt_messages = chosen.messages.dump();
  }
  for (const auto& [key, text] : {std::pair{"chosen", &row.chosen}, {"rejected", &row.rejected}}) {
    if (IsBlankText(*text)) return FailedPrecondition(place, ": \"", key, "\" is blank");
  }
  if (row.chosen == row.rejected) {
    return FailedPrecondition(place, ": \"chosen\" and \"rejected\" are equal");
  }
  return row;
}

absl::StatusOr<PreferenceRow> ReadLabelled(const json& input, const std::string& place) {
  PreferenceRow row;
  TANDEM_ASSIGN_OR_RETURN(const Side prompt, ReadSide(input, "prompt", place));
  TANDEM_ASSIGN_OR_RETURN(Side completion, ReadSide(input, "completion", place));
  if (!Has(input, "label")) return WrongForm(place, "no \"label\"");
  const json& label = input["label"];
  if (!label.is_boolean() && label != 0 && label != 1) {
    return InvalidArgument(place, ": \"label\" is ", label.dump(), ", want true, false, 1 or 0");
  }
  row.desirable = label.is_boolean() ? label.get<bool>() : label == 1;
  row.completion = completion.text;
  if (!completion.messages.empty()) {
    TANDEM_ASSIGN_OR_RETURN(row.completion, TakeReply(completion, "completion", place));
  }
  TANDEM_RETURN_IF_ERROR(SetPrompt(prompt, completion.messages, place, row));
  if (IsBlankText(row.completion)) return FailedPrecondition(place, ": \"completion\" is blank");
  return row;
}

}  // namespace

absl::StatusOr<PreferenceRow> ParsePreferenceRow(std::string_view json_text,
                                                 const std::string& place) {
  if (NestsDeeperThan(json_text, kMaxNesting)) {
    return WrongForm(place, absl::StrCat("nests deeper than ", kMaxNesting, " levels"));
  }
  const json row = json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (row.is_discarded()) return WrongForm(place, JsonFault(json_text));
  if (!row.is_object()) return WrongForm(place, absl::StrCat("is ", row.type_name()));
  const bool pair = Has(row, "chosen") || Has(row, "rejected");
  const bool labelled = Has(row, "completion") || Has(row, "label");
  if (pair && labelled) {
    return WrongForm(place, "has fields of a pair and of a completion with a label");
  }
  if (!pair && !labelled) return WrongForm(place, "no \"chosen\" and no \"completion\"");
  return pair ? ReadPair(row, place) : ReadLabelled(row, place);
}

}  // namespace tandem::trainer
