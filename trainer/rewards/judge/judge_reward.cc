#include "trainer/rewards/judge/judge_reward.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "trainer/rewards/judge/chat_client.h"
#include "trainer/rewards/judge/judge_text.h"

namespace tandem::trainer {
namespace {

constexpr int kRepliesToParse = 2;

}  // namespace

JudgeBudget::JudgeBudget(const JudgeBudgetOptions& options, AnswerCache* cache, std::string name,
                         RewardTally* tally)
    : options_(options),
      cache_(cache),
      name_(std::move(name)),
      tally_(tally),
      spent_(cache == nullptr ? Spending() : cache->FindSpending(name_)) {}

void JudgeBudget::Remember(const Spending& more) {
  if (cache_ != nullptr) cache_->AddSpending(name_, more);
}

absl::Status JudgeBudget::TakeCall() {
  std::string why;
  bool is_first = false;
  {
    MutexLock lock(&mu_);
    if (options_.max_calls > 0 && spent_.calls >= options_.max_calls) {
      why = absl::StrCat(spent_.calls, " calls of reward.judge.budget.max_calls ",
                         options_.max_calls);
    } else if (options_.max_tokens > 0 && spent_.tokens >= options_.max_tokens) {
      why = absl::StrCat(spent_.tokens, " tokens of reward.judge.budget.max_tokens ",
                         options_.max_tokens);
    } else {
      ++spent_.calls;
    }
    is_first = !why.empty() && !std::exchange(said_so_, true);
  }
  if (why.empty()) {
    Remember({.calls = 1});
    return absl::OkStatus();
  }
  const std::string message = absl::StrCat("the budget of the judge is used up: ", why);
  if (is_first) {
    log::Error("the judge is asked no more", {{"reason", message}});
    tally_->AddEvent("reward_budget_spent", message);
  }
  return ResourceExhausted(message);
}

void JudgeBudget::AddTokens(int64_t tokens) {
  {
    MutexLock lock(&mu_);
    spent_.tokens += tokens;
  }
  Remember({.tokens = tokens});
}

Spending JudgeBudget::spent() {
  MutexLock lock(&mu_);
  return spent_;
}

JudgeReward::JudgeReward(const JudgeParts& parts, EndSign* end)
    : parts_(parts),
      pause_(PauseUntil(end)),
      client_(EndpointOf(parts.options.client), parts.options.service.timeout_seconds, end) {}

RewardAnswer JudgeReward::AskOnce(const RewardQuestion& question) {
  const std::string request = JudgeRequestJson(parts_.options, FillRubric(parts_.rubric, question));
  std::string body;
  const auto ask = [&]() -> Attempt {
    if (absl::Status spent = parts_.budget->TakeCall(); !spent.ok()) {
      return {.status = spent, .not_made = true};
    }
    parts_.tally->Update([](RewardNumbers& numbers) { ++numbers.judge_calls; });
    HttpReply reply = client_.Post(kChatCompletions, request);
    body = std::move(reply.body);
    return std::move(reply.attempt);
  };
  TANDEM_RETURN_IF_ERROR(parts_.caller->Call(ask, pause_));
  absl::StatusOr<JudgeReply> reply = ParseJudgeReply(body);
  // An endpoint that does not count may have written as much as it was allowed to.
  const int64_t tokens =
      reply.ok() && reply->tokens >= 0 ? reply->tokens : parts_.options.max_tokens;
  parts_.budget->AddTokens(tokens);
  parts_.tally->Update([&](RewardNumbers& numbers) { numbers.judge_tokens += tokens; });
  TANDEM_RETURN_IF_ERROR(reply.status());
  if (reply->is_cut) {
    return InvalidArgument("the reply was cut at reward.judge.max_tokens ",
                           parts_.options.max_tokens);
  }
  const auto value = question.other.has_value() ? ParseVerdict(reply->text, parts_.options)
                                                : ParseScore(reply->text, parts_.options);
  TANDEM_RETURN_IF_ERROR(value.status());
  return ExternalAnswer{.value = *value};
}

std::vector<RewardAnswer> JudgeReward::Ask(std::span<const RewardQuestion> questions) {
  std::vector<RewardAnswer> answers;
  for (const RewardQuestion& question : questions) {
    RewardAnswer answer = AskOnce(question);
    for (int i = 1;
         i < kRepliesToParse && answer.status().code() == absl::StatusCode::kInvalidArgument; ++i) {
      answer = AskOnce(question);
    }
    answers.push_back(std::move(answer));
  }
  return answers;
}

}  // namespace tandem::trainer
