#include "trainer/environments/environment_messages.h"

#include <cmath>

#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kMostDepth = 100;      // of a line; messages hold what tools return
constexpr size_t kShownBytes = 120;  // of a line, in a message

std::string CompactJson(const ordered_json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string JsonLine(const ordered_json& value) { return CompactJson(value) + "\n"; }

// null for what is no JSON.
ordered_json JsonOrNull(std::string_view text) {
  ordered_json parsed = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? ordered_json(nullptr) : parsed;
}

ordered_json ReplyObject(std::string_view line) {
  if (NestsDeeperThan(line, kMostDepth)) return ordered_json::object();
  ordered_json parsed = JsonOrNull(line);
  return parsed.is_object() ? parsed : ordered_json::object();
}

std::string StringAt(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

absl::Status NoEnvironmentLine(std::string_view line) {
  return InvalidArgument("the process that plays the environment wrote '",
                         line.substr(0, kShownBytes),
                         "', which is no reply: is tandem_rl of this version of Tandem?");
}

std::optional<double> FiniteNumber(const ordered_json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (!value.is_number() || !std::isfinite(value.get<double>())) return std::nullopt;
  return value.get<double>();
}

}  // namespace

std::string EnvironmentHello(const EnvironmentOptions& options, std::string_view chat_template,
                             std::string_view row_json) {
  ordered_json environment;
  if (!options.tools.empty()) {
    environment = {{"kind", "tools"}, {"specs", options.tools}};
  } else if (!options.openenv.empty()) {
    environment = {{"kind", "openenv"}, {"spec", options.openenv}};
  } else if (!options.verifiers.empty()) {
    environment = {{"kind", "verifiers"}, {"spec", options.verifiers}};
  } else {
    environment = {{"kind", "python"}, {"spec", options.python}};
  }
  ordered_json kwargs = ordered_json::object();
  for (const auto& [name, value] : options.kwargs) kwargs[name] = value;
  return JsonLine({{"environment", std::move(environment)},
                   {"kwargs", std::move(kwargs)},
                   {"chat_template", chat_template},
                   {"max_turns", options.max_turns},
                   {"row", JsonOrNull(row_json)}});
}

absl::StatusOr<std::string> ReadEnvironmentReady(std::string_view line, std::string* traceback) {
  const ordered_json reply = ReplyObject(line);
  if (reply.contains("ready")) {
    const auto tools = reply.find("tools");
    if (tools == reply.end() || !tools->is_array() || tools->empty()) return "";
    return CompactJson(*tools);
  }
  const std::string error = StringAt(reply, "error");
  if (error.empty()) return NoEnvironmentLine(line);
  *traceback = StringAt(reply, "traceback");
  return FailedPrecondition(error);
}

std::string OpenLine(int64_t episode, const EpisodeStart& start,
                     const std::vector<AnsweredTurn>& history) {
  ordered_json turns = ordered_json::array();
  for (const AnsweredTurn& turn : history) {
    turns.push_back({{"text", turn.text}, {"messages", JsonOrNull(turn.messages_json)}});
  }
  ordered_json row = JsonOrNull(start.row_json);
  if (!row.is_object()) row = ordered_json::object();
  return JsonLine(
      {{"open", episode},
       {"row", std::move(row)},
       {"prompt", start.prompt.has_value() ? ordered_json(*start.prompt) : ordered_json()},
       {"seed", start.seed},
       {"history", std::move(turns)}});
}

std::string StepLine(int64_t episode, const TurnText& turn) {
  return JsonLine({{"step", episode},
                   {"turn", turn.turn},
                   {"text", turn.text},
                   {"finish_reason", turn.was_cut ? "length" : "stop"},
                   {"is_last", turn.is_last}});
}

std::string FinishLine(int64_t episode, int32_t turn) {
  return JsonLine({{"finish", episode}, {"turn", turn}});
}

std::string EndLine() { return JsonLine({{"end", true}}); }

std::string CloseLine(int64_t episode) { return JsonLine({{"close", episode}}); }

std::string RowsLine(int64_t count, int64_t first_seed) {
  return JsonLine({{"rows", {{"count", count}, {"first_seed", first_seed}}}});
}

absl::StatusOr<EnvironmentReply> ReadEnvironmentReply(std::string_view line) {
  const ordered_json object = ReplyObject(line);
  const auto episode = object.find("episode"), turn = object.find("turn");
  if (episode == object.end() || !episode->is_number_integer() || turn == object.end() ||
      !turn->is_number_integer()) {
    return NoEnvironmentLine(line);
  }
  EnvironmentReply reply;
  reply.episode = episode->get<int64_t>();
  reply.turn = turn->get<int32_t>();
  if (const std::string error = StringAt(object, "error"); !error.empty()) {
    reply.failure = Aborted(error);
    reply.traceback = StringAt(object, "traceback");
    return reply;
  }
  const auto messages = object.find("messages");
  if (messages == object.end() || !messages->is_array()) return NoEnvironmentLine(line);
  reply.messages_json = CompactJson(*messages);
  const auto done = object.find("done");
  reply.done = done != object.end() && done->is_boolean() && done->get<bool>();
  if (reply.turn > 0 && !reply.done && messages->empty()) return NoEnvironmentLine(line);
  if (const auto reward = object.find("reward"); reward != object.end()) {
    reply.reward = FiniteNumber(*reward);
  }
  if (const auto seconds = object.find("seconds"); seconds != object.end()) {
    reply.seconds = FiniteNumber(*seconds).value_or(0);
  }
  if (const auto info = object.find("info"); info != object.end() && info->is_object()) {
    for (const auto& [name, value] : info->items()) {
      if (const auto number = FiniteNumber(value)) reply.info.emplace_back(name, *number);
    }
  }
  return reply;
}

absl::StatusOr<std::optional<std::string>> ReadRow(std::string_view line) {
  const ordered_json object = ReplyObject(line);
  if (object.contains("rows")) return std::nullopt;
  if (const std::string error = StringAt(object, "error"); !error.empty()) return Aborted(error);
  const auto row = object.find("row");
  if (row == object.end() || !row->is_object()) return NoEnvironmentLine(line);
  return CompactJson(*row);
}

}  // namespace tandem::trainer
