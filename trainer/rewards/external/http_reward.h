// HttpReward: a reward service of the user over HTTP (component http), a batch of completions per
// request:
//   -> {"inputs":[{"prompt":"..","completion":"..","answer":"..","source":{..},"truncated":false}]}
//   <- {"rewards":[0.5, {"reward":0.5,"steps":[{"end":4,"reward":1}]}, {"error":"why not"}]}
// with one reward per input, in order. Used by external_parts.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/options/options.h"
#include "trainer/rewards/external/http_client.h"
#include "trainer/rewards/external/question_pool.h"
#include "trainer/rewards/external/service_call.h"

namespace tandem::trainer {

struct HttpRewardOptions {
  HttpClientOptions client;
  ServiceOptions service;
  int64_t batch_size = 16;
};
void BindOptions(OptionBinder& binder, HttpRewardOptions& options);

std::string RewardRequestJson(std::span<const RewardQuestion> questions);

// One answer per question.
//   INVALID_ARGUMENT  no JSON object with a list "rewards", or one of another length; errors of
//                     ParseAnswer for single answers
absl::StatusOr<std::vector<RewardAnswer>> ParseRewardReply(
    std::string_view body, std::span<const RewardQuestion> questions);

// Use from one thread, which blocks SIGPIPE.
class HttpReward : public Asker {
 public:
  // `caller` is shared by the workers and outlives them.
  HttpReward(const HttpRewardOptions& options, ServiceCaller* caller, EndSign* end);

  // A request that fails after all attempts fails for all questions. Errors of ServiceCaller::Call,
  // HttpClient::Post and ParseRewardReply.
  std::vector<RewardAnswer> Ask(std::span<const RewardQuestion> questions) override;

 private:
  ServiceCaller* const caller_;
  const ServiceCaller::Pause pause_;
  HttpClient client_;
};

}  // namespace tandem::trainer
