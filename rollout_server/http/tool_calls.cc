#include "rollout_server/http/tool_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/json.h"
#include "rollout_server/http/json_fields.h"

namespace tandem::rollout {
namespace {

constexpr std::string_view kCallBegin = "<tool_call>", kCallEnd = "</tool_call>",
                           kThoughtEnd = "</think>";
constexpr int kMostCallLevels = 32;

Json ParsedCall(std::string_view text) {
  if (NestsDeeperThan(text, kMostCallLevels)) return nullptr;
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? Json() : json;
}

std::optional<ToolCall> ReadCall(std::string_view text) {
  const Json call = ParsedCall(text);
  if (!call.is_object() || !call.contains("name") || !call["name"].is_string()) return std::nullopt;
  // "parameters" is what some models write, and some write the arguments as a text.
  Json arguments = Json::object();
  for (const char* const key : {"arguments", "parameters"}) {
    if (!call.contains(key)) continue;
    arguments =
        call[key].is_string() ? ParsedCall(call[key].get_ref<const std::string&>()) : call[key];
    break;
  }
  if (arguments.is_null()) arguments = Json::object();
  if (!arguments.is_object()) return std::nullopt;
  return ToolCall{.name = call["name"], .arguments = JsonText(arguments)};
}

}  // namespace

CallingTurn ReadToolCalls(std::string_view text) {
  const CallingTurn only_text = {.content = std::string(text)};
  const size_t thought = text.rfind(kThoughtEnd);
  size_t at = text.find(kCallBegin, thought == std::string_view::npos ? 0 : thought);
  CallingTurn turn = {.content = std::string(text.substr(0, at))};
  while (at != std::string_view::npos) {
    const size_t begin = at + kCallBegin.size(), end = text.find(kCallEnd, begin);
    std::optional<ToolCall> call = ReadCall(text.substr(begin, end - begin));
    if (!call) return only_text;
    turn.calls.push_back(*std::move(call));
    at = end == std::string_view::npos ? end : text.find(kCallBegin, end);
  }
  return turn;
}

std::string HeldCalls::Add(std::string_view more) {
  text_ += more;
  size_t certain = text_.find(kCallBegin, given_);
  if (certain == std::string::npos) {
    // The end of the text may be the beginning of the tag.
    certain = text_.size();
    for (size_t size = std::min(kCallBegin.size() - 1, text_.size() - given_); size > 0; --size) {
      if (!text_.ends_with(kCallBegin.substr(0, size))) continue;
      certain -= size;
      break;
    }
  }
  const size_t from = std::exchange(given_, certain);
  return text_.substr(from, certain - from);
}

CallingTurn HeldCalls::Finish() const {
  CallingTurn turn = ReadToolCalls(text_);
  turn.content.erase(0, given_);
  return turn;
}

}  // namespace tandem::rollout
