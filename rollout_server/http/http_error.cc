#include "rollout_server/http/http_error.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/refusal.h"

namespace tandem::rollout {
namespace {

constexpr char kCodeKey[] = "tandem-http-code";
constexpr char kStatusKey[] = "tandem-http-status";

std::string TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 409:
      return "conflict_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

absl::Status WithHttpStatus(int http_status, absl::Status error) {
  error.SetPayload(kStatusKey, absl::Cord(absl::StrCat(http_status)));
  return error;
}

int HttpStatusOf(const absl::Status& error) {
  int given = 0;
  if (const auto status = error.GetPayload(kStatusKey);
      status && absl::SimpleAtoi(std::string(*status), &given)) {
    return given;
  }
  if (rpc::IsBusy(rpc::RefusalOf(error))) return 429;
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 413;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

Json ErrorJson(const absl::Status& error) {
  const int status = HttpStatusOf(error);
  Json inner = {{"message", std::string(error.message())}, {"type", TypeOf(status)}};
  const std::string param = ParamOf(error);
  inner["param"] = param.empty() ? Json() : Json(param);
  const auto code = error.GetPayload(kCodeKey);
  const std::string refusal(rpc::RefusalName(rpc::RefusalOf(error)));
  inner["code"] = code ? Json(std::string(*code)) : !refusal.empty() ? Json(refusal) : Json(status);
  return {{"error", std::move(inner)}};
}

HttpReply ErrorReply(const absl::Status& error, int64_t retry_after_ms) {
  HttpReply reply;
  reply.status = HttpStatusOf(error);
  reply.body = JsonText(ErrorJson(error));
  if (reply.status == 429 || reply.status == 503) {
    reply.headers.emplace_back("Retry-After", absl::StrCat((retry_after_ms + 999) / 1000));
    reply.headers.emplace_back("retry-after-ms", absl::StrCat(retry_after_ms));
  }
  if (reply.status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

absl::Status ContextExceeded(int64_t prompt_tokens, int64_t wanted_tokens, int64_t context_tokens) {
  absl::Status error = InvalidArgument(
      "This model's maximum context length is ", context_tokens, " tokens. However, you requested ",
      prompt_tokens + wanted_tokens, " tokens (", prompt_tokens, " in the prompt, ", wanted_tokens,
      " in the completion): shorten the prompt, or lower max_tokens");
  error.SetPayload(kCodeKey, absl::Cord("context_length_exceeded"));
  return error;
}

}  // namespace tandem::rollout
