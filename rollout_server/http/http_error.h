// Errors in the shape of OpenAI's API: {"error": {"message", "type", "param", "code"}}. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "rollout_server/http/json_fields.h"

namespace tandem::rollout {

// The HTTP status of an error: 400 INVALID_ARGUMENT, OUT_OF_RANGE; 401 UNAUTHENTICATED;
// 403 PERMISSION_DENIED; 404 NOT_FOUND; 409 FAILED_PRECONDITION, ABORTED; 429 a refusal that waiting
// may end (common/rpc/refusal.h); 413 another RESOURCE_EXHAUSTED; 501 UNIMPLEMENTED;
// 503 UNAVAILABLE; 504 DEADLINE_EXCEEDED; 500 others.
int HttpStatusOf(const absl::Status& error);

// {"error": ...}
Json ErrorJson(const absl::Status& error);

// The whole reply. `retry_after_ms`: where the status is 429 or 503, as Retry-After and
// retry-after-ms.
HttpReply ErrorReply(const absl::Status& error, int64_t retry_after_ms = 1000);

// An error with a status that no code stands for, such as 405.
absl::Status WithHttpStatus(int http_status, absl::Status error);

// The error of a prompt that is too long, with OpenAI's code context_length_exceeded, by which
// clients know it.
absl::Status ContextExceeded(int64_t prompt_tokens, int64_t wanted_tokens, int64_t context_tokens);

}  // namespace tandem::rollout
