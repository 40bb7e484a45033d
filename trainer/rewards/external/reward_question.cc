#include "trainer/rewards/external/reward_question.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/weights/digest.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kMostNesting = 16;        // of an answer
constexpr size_t kShownBytes = 120;     // of an answer in a message
constexpr int64_t kMostSteps = 100000;  // of one completion

}  // namespace

// "want {"end": byte offset, "reward": x} in rising order" and why not.
absl::StatusOr<std::vector<StepReward>> ParseSteps(const json& steps, std::string_view who,
                                                   std::string_view text) {
  if (!steps.is_array() || steps.size() > static_cast<size_t>(kMostSteps)) {
    return InvalidArgument(who, " gave \"steps\" that are no list of at most ", kMostSteps);
  }
  std::vector<StepReward> parsed;
  int64_t after = 0;
  const auto size = static_cast<int64_t>(text.size());
  for (const json& step : steps) {
    const auto end = step.is_object() ? step.find("end") : step.end();
    const auto reward = step.is_object() ? step.find("reward") : step.end();
    const std::string where = absl::StrCat(std::string(who), " gave step ", parsed.size());
    if (!step.is_object() || end == step.end() || !end->is_number_integer() ||
        reward == step.end() || !reward->is_number() || !std::isfinite(reward->get<double>())) {
      return InvalidArgument(where, ": want {\"end\": a byte offset, \"reward\": a finite number}");
    }
    const auto byte = end->get<int64_t>();
    if (byte <= after || byte > size) {
      return InvalidArgument(where, " with \"end\" ", byte, ": want it after ", after,
                             " and at most ", size, ", the bytes of the completion");
    }
    if (byte < size &&
        (static_cast<unsigned char>(text[static_cast<size_t>(byte)]) & 0xc0) == 0x80) {
      return InvalidArgument(where, " with \"end\" ", byte,
                             ", which is within a character: offsets count bytes of UTF-8");
    }
    parsed.push_back({.end_byte = byte, .value = reward->get<double>()});
    after = byte;
  }
  return parsed;
}

HeldGroup::HeldGroup(std::span<const RewardInput> inputs) {
  inputs_.assign(inputs.begin(), inputs.end());
  const auto hold = [this](std::string_view text) -> std::string_view {
    return texts_.emplace_back(text);
  };
  const auto is_same = [](std::string_view a, std::string_view b) {
    return a.data() == b.data() && a.size() == b.size();
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    inputs_[i].text = hold(inputs[i].text);
    if (inputs[i].last_turn.has_value()) inputs_[i].last_turn = hold(*inputs[i].last_turn);
    inputs_[i].token_ids =
        token_ids_.emplace_back(inputs[i].token_ids.begin(), inputs[i].token_ids.end());
    for (std::string_view RewardInput::*const field :
         {&RewardInput::answer, &RewardInput::prompt, &RewardInput::source_json}) {
      const bool shared = i > 0 && is_same(inputs[i].*field, inputs[i - 1].*field);
      inputs_[i].*field = shared ? inputs_[i - 1].*field : hold(inputs[i].*field);
    }
  }
}

std::string QuestionJson(const RewardInput& input, std::optional<int64_t> id) {
  ordered_json question;
  if (id.has_value()) question["id"] = *id;
  question["prompt"] = input.prompt;
  question["completion"] = input.text;
  question["answer"] = input.answer;
  question["source"] = ordered_json::parse(input.source_json, nullptr, /*allow_exceptions=*/false);
  if (question["source"].is_discarded()) question["source"] = nullptr;
  question["truncated"] = input.truncated;
  return question.dump(-1, ' ', false, json::error_handler_t::replace);
}

RewardAnswer ParseAnswer(std::string_view text_of_answer, std::string_view who,
                         std::string_view text) {
  const json answer = NestsDeeperThan(text_of_answer, kMostNesting)
                          ? json(json::value_t::discarded)
                          : json::parse(text_of_answer, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object() && answer.contains("error") && !answer["error"].is_null()) {
    const std::string reported =
        answer["error"].dump(-1, ' ', false, json::error_handler_t::replace);
    return Aborted(who, " reports: ", reported.substr(0, 200));
  }
  const bool alone = answer.is_number();
  const json reward = alone ? answer : answer.is_object() ? answer.value("reward", json()) : json();
  if (!reward.is_number() || !std::isfinite(reward.get<double>())) {
    return InvalidArgument(who, " wrote '", text_of_answer.substr(0, kShownBytes),
                           "': \"reward\" is not a finite number");
  }
  ExternalAnswer parsed = {.value = reward.get<double>()};
  if (!alone && answer.contains("steps")) {
    TANDEM_ASSIGN_OR_RETURN(parsed.steps, ParseSteps(answer["steps"], who, text));
  }
  return parsed;
}

std::string AnswerJson(const ExternalAnswer& answer) {
  ordered_json written = {{"reward", answer.value}};
  if (!answer.steps.empty()) {
    ordered_json steps = ordered_json::array();
    for (const StepReward& step : answer.steps) {
      steps.push_back({{"end", step.end_byte}, {"reward", step.value}});
    }
    written["steps"] = std::move(steps);
  }
  return written.dump();
}

std::string DigestOfParts(std::span<const std::string_view> parts) {
  std::string bytes;
  for (const std::string_view part : parts) {
    absl::StrAppend(&bytes, part.size(), ":");
    bytes.append(part);
  }
  return Digest128(std::as_bytes(std::span(bytes)));
}

}  // namespace tandem::trainer
