#include "trainer/rewards/judge/chat_client.h"

#include <utility>

#include "common/base/status_macros.h"

namespace tandem::trainer {

HttpClientOptions EndpointOf(HttpClientOptions options) {
  while (options.url.ends_with('/')) options.url.pop_back();
  if (options.url.ends_with(kChatCompletions)) {
    options.url.resize(options.url.size() - (sizeof(kChatCompletions) - 1));
  }
  return options;
}

ChatClient::ChatClient(const JudgeOptions& options, ServiceCaller* caller, EndSign* end)
    : options_(options),
      caller_(caller),
      pause_(PauseUntil(end)),
      client_(EndpointOf(options.client), options.service.timeout_seconds, end) {}

absl::StatusOr<JudgeReply> ChatClient::Ask(const std::string& content) {
  const std::string request = JudgeRequestJson(options_, content);
  std::string body;
  TANDEM_RETURN_IF_ERROR(caller_->Call(
      [&]() -> Attempt {
        HttpReply reply = client_.Post(kChatCompletions, request);
        body = std::move(reply.body);
        return std::move(reply.attempt);
      },
      pause_));
  return ParseJudgeReply(body);
}

}  // namespace tandem::trainer
