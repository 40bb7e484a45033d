#include "trainer/rewards/external/http_reward.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/foreign_json.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace tandem::trainer {
namespace {

constexpr char kService[] = "reward service";
constexpr int kMostReplyNesting = 20;

}  // namespace

void BindOptions(OptionBinder& binder, HttpRewardOptions& options) {
  binder.Text("url", &options.client.url,
              "component http: where completions are posted, as JSON {\"inputs\":[..]}");
  BindOptions(binder, options.client, "token_file");
  binder.Integer("batch_size", &options.batch_size, {.min = 1, .max = 4096}, "completions",
                 "most of one request");
  BindOptions(binder, options.service);
}

std::string RewardRequestJson(std::span<const RewardQuestion> questions) {
  std::string json = "{\"inputs\":[";
  const char* comma = "";
  for (const RewardQuestion& question : questions) {
    absl::StrAppend(&json, std::exchange(comma, ","), QuestionJson(question.input()));
  }
  return json + "]}";
}

absl::StatusOr<std::vector<RewardAnswer>> ParseRewardReply(
    std::string_view body, std::span<const RewardQuestion> questions) {
  using nlohmann::json;
  const json reply = NestsDeeperThan(body, kMostReplyNesting)
                         ? json(json::value_t::discarded)
                         : json::parse(NullForNonFinite(body), nullptr, /*allow_exceptions=*/false);
  const json rewards = reply.is_object() ? reply.value("rewards", json()) : json();
  if (!rewards.is_array()) {
    return InvalidArgument(kService, " wrote '", body.substr(0, 120), "', want {\"rewards\":[..]}");
  }
  if (rewards.size() != questions.size()) {
    return InvalidArgument(kService, " gave ", rewards.size(), " rewards for ", questions.size(),
                           " completions: want one for each, in order");
  }
  std::vector<RewardAnswer> answers;
  for (size_t i = 0; i < questions.size(); ++i) {
    const std::string json_of_one = rewards[i].dump(-1, ' ', false, json::error_handler_t::replace);
    answers.push_back(ParseAnswer(json_of_one, kService, questions[i].input().text));
  }
  return answers;
}

HttpReward::HttpReward(const HttpRewardOptions& options, ServiceCaller* caller, EndSign* end)
    : caller_(caller),
      pause_(PauseUntil(end)),
      client_(options.client, options.service.timeout_seconds, end) {}

std::vector<RewardAnswer> HttpReward::Ask(std::span<const RewardQuestion> questions) {
  const std::string request = RewardRequestJson(questions);
  std::string body;
  const auto ask = [&] {
    HttpReply reply = client_.Post("", request);
    body = std::move(reply.body);
    return std::move(reply.attempt);
  };
  absl::Status called = caller_->Call(ask, pause_);
  if (!called.ok()) return std::vector<RewardAnswer>(questions.size(), called);
  auto answers = ParseRewardReply(body, questions);
  if (answers.ok()) return *std::move(answers);
  return std::vector<RewardAnswer>(questions.size(), answers.status());
}

}  // namespace tandem::trainer
