// Refusal: the reason why a rollout server refused a call, as a name that programs can act on. The
// gRPC code alone is ambiguous: RESOURCE_EXHAUSTED is the code of a full queue, and also gRPC's own
// code for a message that is too large. The name travels as trailing metadata kRefusalKey.
//
// Used by the rollout server's services and by the trainer's client. Free of gRPC. Pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace tandem::rpc {

// The largest message from a rollout server to its callers. Both sides know the limit, so a server
// answers TOO_LARGE instead of sending a message that the caller's gRPC would reject.
inline constexpr int64_t kMaxMessageBytes = 64 << 20;

enum class Refusal {
  kNone,                 // no refusal, or one without a name
  kQueueFull,            // QUEUE_FULL: max_queued_groups are waiting, or the most scores
  kDeadlineBeforeStart,  // DEADLINE_BEFORE_START: at the recent pace it would start too late
  kMemoryFull,           // MEMORY_FULL: other groups hold the memory for groups or the KV cache
  kTooLarge,             // TOO_LARGE: this call alone exceeds a limit; repeating it cannot help
  kDeadlineTooFar,       // DEADLINE_TOO_FAR: no deadline, or one beyond the server's maximum
};

// Key of the trailing metadata of a refused call.
inline constexpr char kRefusalKey[] = "tandem-refusal";
// Key of further metadata where IsBusy: after how many milliseconds to ask again.
inline constexpr char kRetryAfterKey[] = "retry-after-ms";

// "QUEUE_FULL" and so on; empty for kNone.
std::string_view RefusalName(Refusal refusal);
// kNone for an unknown name.
Refusal RefusalNamed(std::string_view name);

// True if the server is healthy and the call is worth repeating later.
bool IsBusy(Refusal refusal);

// The error, made to carry the name of a refusal; unchanged for kNone.
absl::Status Refused(Refusal refusal, absl::Status error);
Refusal RefusalOf(const absl::Status& status);

}  // namespace tandem::rpc
