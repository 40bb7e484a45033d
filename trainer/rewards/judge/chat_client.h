// ChatClient: one reply of a language model behind an endpoint with the API of OpenAI's chat
// completions, repeated where that may help. Used by commands that make data; a judge of a run has
// a budget beside (judge_reward.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "trainer/rewards/external/http_client.h"
#include "trainer/rewards/external/question_pool.h"
#include "trainer/rewards/external/service_call.h"
#include "trainer/rewards/judge/judge_options.h"
#include "trainer/rewards/judge/judge_text.h"

namespace tandem::trainer {

inline constexpr char kChatCompletions[] = "/chat/completions";

// "https://host/v1", with or without a slash or the path of chat completions at its end.
HttpClientOptions EndpointOf(HttpClientOptions options);

// Use from one thread, which blocks SIGPIPE.
class ChatClient {
 public:
  // Reads the client, the model, temperature, max_tokens and the service of `options`. All must
  // outlive it.
  ChatClient(const JudgeOptions& options, ServiceCaller* caller, EndSign* end);

  // The reply to one message of the user.
  //   INVALID_ARGUMENT  no reply in what came back
  //   errors of ServiceCaller::Call and HttpClient::Post
  absl::StatusOr<JudgeReply> Ask(const std::string& content);

 private:
  const JudgeOptions& options_;
  ServiceCaller* const caller_;
  const ServiceCaller::Pause pause_;
  HttpClient client_;
};

}  // namespace tandem::trainer
