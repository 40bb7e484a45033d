#include "trainer/rewards/judge/judge_text.h"

#include <re2/re2.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kMostJudgeNesting = 32;
constexpr int kMostObjects = 64;  // that are looked at, from the end of a reply

json ParseUntrusted(std::string_view text) {
  if (NestsDeeperThan(text, kMostJudgeNesting)) return json(json::value_t::discarded);
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string_view ValueOfPlace(std::string_view place, const RewardQuestion& question) {
  const RewardInput& input = question.input();
  if (place == "{prompt}") return input.prompt;
  if (place == "{answer}") return input.answer;
  if (place == "{completion_b}") {
    return question.group->inputs()[question.other.value_or(question.index)].text;
  }
  return input.text;
}

std::string Shown(std::string_view reply) {
  const std::string_view end = reply.substr(reply.size() - std::min<size_t>(reply.size(), 120));
  return absl::StrCat("'", std::string(end), "'");
}

// The first group of the last match.
std::optional<std::string> LastMatch(std::string_view text, const RE2& pattern) {
  re2::StringPiece rest(text.data(), text.size());
  std::optional<std::string> last;
  while (true) {
    re2::StringPiece groups[2];
    if (!pattern.Match(rest, 0, rest.size(), RE2::UNANCHORED, groups, 2)) return last;
    last = std::string(groups[1].data() == nullptr ? "" : groups[1].data(), groups[1].size());
    const size_t past =
        static_cast<size_t>(groups[0].data() - rest.data()) + std::max<size_t>(1, groups[0].size());
    if (past > rest.size()) return last;
    rest.remove_prefix(past);
  }
}

// Past the brace that closes the object which opens at `open`; npos: none does.
size_t EndOfObject(std::string_view text, size_t open) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = open; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && text[i] == '{') {
      ++depth;
    } else if (!in_string && text[i] == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

// The field `name` of the last JSON object in `text` that has it; there may be prose around it.
json LastJsonField(std::string_view text, const char* name) {
  size_t open = text.rfind('{');
  for (int looked_at = 0; open != std::string_view::npos && looked_at < kMostObjects;
       open = open == 0 ? std::string_view::npos : text.rfind('{', open - 1), ++looked_at) {
    const size_t end = EndOfObject(text, open);
    if (end == std::string_view::npos) continue;
    const json object = ParseUntrusted(text.substr(open, end - open));
    if (object.is_object() && object.contains(name)) return object[name];
  }
  return {};
}

// "8", "8.5", "8/10", "8 out of 10": of the last of them.
std::optional<std::string> LastScore(std::string_view text) {
  static const RE2 kScore(R"(([-+]?\d+(?:\.\d+)?)(?:\s*(?:/|out of)\s*\d+(?:\.\d+)?)?)");
  return LastMatch(text, kScore);
}

std::optional<double> VerdictOf(std::string_view text) {
  const std::string word =
      absl::AsciiStrToLower(absl::StripAsciiWhitespace({text.data(), text.size()}));
  if (word == "a") return 1;
  if (word == "b") return 0;
  if (word == "c" || word == "tie") return 0.5;
  return std::nullopt;
}

}  // namespace

std::string FillRubric(std::string_view rubric, const RewardQuestion& question) {
  static const RE2 kPlace(R"((\{(?:prompt|answer|completion|completion_a|completion_b)\}))");
  std::string filled;
  re2::StringPiece rest(rubric.data(), rubric.size());
  re2::StringPiece place;
  while (kPlace.Match(rest, 0, rest.size(), RE2::UNANCHORED, &place, 1)) {
    filled.append(rest.data(), place.data());
    filled.append(ValueOfPlace({place.data(), place.size()}, question));
    rest.remove_prefix(static_cast<size_t>(place.data() - rest.data()) + place.size());
  }
  filled.append(rest.data(), rest.size());
  return filled;
}

std::string JudgeRequestJson(const JudgeOptions& options, const std::string& content) {
  const ordered_json request = {
      {"model", options.model},
      {"messages", ordered_json::array({{{"role", "user"}, {"content", content}}})},
      {"temperature", options.temperature},
      {"max_tokens", options.max_tokens}};
  return request.dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<JudgeReply> ParseJudgeReply(std::string_view body) {
  const json reply = ParseUntrusted(body);
  const json usage = reply.is_object() ? reply.value("usage", json()) : json();
  const json total = usage.is_object() ? usage.value("total_tokens", json()) : json();
  JudgeReply parsed = {.tokens = total.is_number_integer() ? total.get<int64_t>() : -1};
  const json choices = reply.is_object() ? reply.value("choices", json()) : json();
  if (choices.is_array() && !choices.empty() && choices[0].is_object()) {
    const json message = choices[0].value("message", json());
    const json content = message.is_object() ? message.value("content", json()) : json();
    parsed.is_cut = choices[0].value("finish_reason", json()) == "length";
    if (content.is_string()) parsed.text = content.get<std::string>();
    if (content.is_string()) {
      constexpr std::string_view kThought = "</think>";
      if (const size_t end = parsed.text.rfind(kThought); end != std::string::npos) {
        parsed.text.erase(0, end + kThought.size());
      }
      return parsed;
    }
  }
  return InvalidArgument("the endpoint wrote '", body.substr(0, 120),
                         "', want {\"choices\":[{\"message\":{\"content\":\"..\"}}]}");
}

absl::StatusOr<double> ParseScore(std::string_view reply, const JudgeOptions& options) {
  std::optional<std::string> found;
  if (!options.score_pattern.empty()) {
    found = LastMatch(reply, RE2(options.score_pattern));
  } else if (const json field = LastJsonField(reply, "score"); field.is_number()) {
    found = field.dump();
  } else {
    found = LastScore(reply);
  }
  double score = 0;
  if (!found.has_value() || !absl::SimpleAtod(*found, &score) || !std::isfinite(score)) {
    return InvalidArgument("no score in the reply that ends ", Shown(reply));
  }
  if (score < options.score_min || score > options.score_max) {
    return InvalidArgument("score ", score, " is outside of ", options.score_min, " to ",
                           options.score_max, ", in the reply that ends ", Shown(reply));
  }
  return (score - options.score_min) / (options.score_max - options.score_min);
}

absl::StatusOr<double> ParseVerdict(std::string_view reply, const JudgeOptions& options) {
  static const RE2 kVerdict(R"(\[\[\s*((?i)a|b|c|tie)\s*\]\])");
  std::optional<std::string> found = options.score_pattern.empty()
                                         ? LastMatch(reply, kVerdict)
                                         : LastMatch(reply, RE2(options.score_pattern));
  if (options.score_pattern.empty() && !found.has_value()) {
    const json field = LastJsonField(reply, "winner");
    found = field.is_string() ? field.get<std::string>() : std::string(reply);
  }
  const std::optional<double> verdict = VerdictOf(found.value_or(""));
  if (verdict.has_value()) return *verdict;
  return InvalidArgument("no verdict in the reply that ends ", Shown(reply));
}

}  // namespace tandem::trainer
