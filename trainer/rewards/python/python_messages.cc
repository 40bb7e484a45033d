#include "trainer/rewards/python/python_messages.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kMostReplyDepth = 16;
constexpr size_t kShownOfReply = 120;  // bytes in a message
constexpr char kWorker[] = "the Python worker";

std::string DumpLine(const ordered_json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

// null for what is no JSON.
ordered_json ParsedSource(std::string_view text) {
  ordered_json parsed = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? ordered_json(nullptr) : parsed;
}

json ParsedLine(std::string_view line) {
  json parsed = NestsDeeperThan(line, kMostReplyDepth)
                    ? json(json::value_t::discarded)
                    : json::parse(line, nullptr, /*allow_exceptions=*/false);
  return parsed.is_object() ? parsed : json::object();
}

std::string TextAt(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

absl::Status NoReply(std::string_view line) {
  return InvalidArgument(kWorker, " wrote '", line.substr(0, kShownOfReply),
                         "', which is no reply: is tandem_rl of this version of Tandem?");
}

const char* FormName(CompletionForm form) {
  if (form == CompletionForm::kText) return "text";
  return form == CompletionForm::kMessages ? "messages" : "auto";
}

absl::Status ReadTokens(const json& tokens, const RewardInput& input, ExternalAnswer* answer) {
  const auto is_number = [](const json& value) {
    return value.is_number() && std::isfinite(value.get<double>());
  };
  if (!tokens.is_array() || !std::ranges::all_of(tokens, is_number)) {
    return Aborted("\"tokens\" is no list of finite numbers");
  }
  if (static_cast<int64_t>(tokens.size()) != input.num_tokens) {
    return Aborted("\"tokens\" has ", tokens.size(), " rewards, and the completion has ",
                   input.num_tokens, " tokens (completion_ids)");
  }
  for (const json& value : tokens) answer->token_rewards.push_back(value.get<double>());
  return absl::OkStatus();
}

RewardAnswer ReadReward(const json& reward, const RewardInput& input) {
  if (reward.is_null()) return ExternalAnswer{.is_left_out = true};
  if (!reward.is_object()) return Aborted(kWorker, " gave no reward");
  if (const std::string error = TextAt(reward, "error"); !error.empty()) return Aborted(error);
  const auto value = reward.find("reward");
  if (value == reward.end() || !value->is_number() || !std::isfinite(value->get<double>())) {
    return Aborted(kWorker, " gave a reward that is no finite number");
  }
  ExternalAnswer answer = {.value = value->get<double>()};
  if (const auto steps = reward.find("steps"); steps != reward.end()) {
    auto parsed = ParseSteps(*steps, "the function", input.text);
    if (!parsed.ok()) return Aborted(parsed.status().message());
    answer.steps = *std::move(parsed);
  }
  if (const auto tokens = reward.find("tokens"); tokens != reward.end()) {
    TANDEM_RETURN_IF_ERROR(ReadTokens(*tokens, input, &answer));
  }
  if (const auto parts = reward.find("parts"); parts != reward.end() && parts->is_object()) {
    for (const auto& [name, part] : parts->items()) {
      if (part.is_number()) answer.parts.emplace_back(name, part.get<double>());
    }
  }
  return answer;
}

// {"column": ["text", ..]} with one text for each completion.
void AddNotes(const json& extra, std::vector<RewardAnswer>* answers) {
  for (const auto& [column, texts] : extra.items()) {
    if (!texts.is_array() || texts.size() != answers->size()) continue;
    for (size_t i = 0; i < answers->size(); ++i) {
      if ((*answers)[i].ok() && texts[i].is_string()) {
        (*answers)[i]->notes.emplace_back(column, texts[i].get<std::string>());
      }
    }
  }
}

}  // namespace

std::string PythonHello(const std::vector<PythonFunction>& functions,
                        const PythonRewardOptions& options, std::string_view row) {
  ordered_json named = ordered_json::array();
  for (const PythonFunction& function : functions) {
    named.push_back({{"name", function.name}, {"spec", function.spec}});
  }
  ordered_json kwargs = ordered_json::object();
  for (const auto& [name, value] : options.kwargs) kwargs[name] = value;
  return DumpLine({{"functions", std::move(named)},
                   {"kwargs", std::move(kwargs)},
                   {"completions", FormName(options.completions)},
                   {"row", ParsedSource(row)}});
}

absl::Status ReadPythonReady(std::string_view line, std::string* traceback) {
  const json reply = ParsedLine(line);
  if (reply.contains("ready")) return absl::OkStatus();
  const std::string error = TextAt(reply, "error");
  if (error.empty()) return NoReply(line);
  *traceback = TextAt(reply, "traceback");
  return FailedPrecondition(error);
}

std::string PythonRequest(std::span<const RewardQuestion> questions,
                          std::span<const PythonGroup> groups) {
  ordered_json asked = ordered_json::array();
  for (const PythonGroup& group : groups) {
    ordered_json completions = ordered_json::array();
    for (const size_t index : group.indices) {
      const RewardInput& input = questions[index].input();
      ordered_json completion = {
          {"text", input.text},
          {"ids", std::vector<int32_t>(input.token_ids.begin(), input.token_ids.end())},
          {"truncated", input.truncated}};
      if (input.episode != nullptr) {
        completion["messages"] = ParsedSource(input.episode->messages_json);
      }
      completions.push_back(std::move(completion));
    }
    const RewardInput& first = questions[group.indices[0]].input();
    asked.push_back({{"id", group.id},
                     {"prompt", first.prompt},
                     {"answer", first.answer},
                     {"source", ParsedSource(first.source_json)},
                     {"step", first.step},
                     {"num_steps", first.num_steps},
                     {"completions", std::move(completions)}});
  }
  const size_t function = questions[groups[0].indices[0]].scorer;
  return DumpLine({{"function", function}, {"groups", std::move(asked)}});
}

absl::StatusOr<std::pair<int64_t, PythonReply>> ReadPythonReply(
    std::string_view line, std::span<const RewardQuestion> questions,
    std::span<const PythonGroup> open) {
  const json reply = ParsedLine(line);
  const auto id = reply.find("id");
  const auto rewards = reply.find("rewards");
  if (id == reply.end() || !id->is_number_integer() || rewards == reply.end()) {
    return NoReply(line);
  }
  const auto group = std::ranges::find(open, id->get<int64_t>(), &PythonGroup::id);
  if (group == open.end() || !rewards->is_array() || rewards->size() != group->indices.size()) {
    return NoReply(line);
  }
  PythonReply read;
  for (size_t i = 0; i < group->indices.size(); ++i) {
    const json& reward = (*rewards)[i];
    read.answers.push_back(ReadReward(reward, questions[group->indices[i]].input()));
    read.tracebacks.push_back(reward.is_object() ? TextAt(reward, "traceback") : "");
  }
  if (const auto extra = reply.find("extra"); extra != reply.end() && extra->is_object()) {
    AddNotes(*extra, &read.answers);
  }
  if (const auto seconds = reply.find("seconds"); seconds != reply.end() && seconds->is_number()) {
    read.seconds = seconds->get<double>();
  }
  const auto found = reply.find("logged");
  const json logged = found == reply.end() ? json::object() : *found;
  for (const auto& [name, sum_and_count] : logged.items()) {
    const bool is_pair = sum_and_count.is_array() && sum_and_count.size() == 2 &&
                         sum_and_count[0].is_number() && sum_and_count[1].is_number_integer();
    if (!is_pair) continue;
    read.logged[name] = {sum_and_count[0].get<double>(), sum_and_count[1].get<int64_t>()};
  }
  return std::make_pair(group->id, std::move(read));
}

}  // namespace tandem::trainer
