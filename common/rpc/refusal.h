// Refusal: why a rollout server turned a call away, as a name that a program can act on. The gRPC
// code alone does not say it: RESOURCE_EXHAUSTED is what a full queue gives, and what gRPC itself
// gives for a message that is too large. The name travels as trailing metadata kRefusalKey.
//
// Used by the rollout server's services and by the trainer's client. Free of gRPC. Pure.
#ifndef TANDEM_COMMON_RPC_REFUSAL_H_
#define TANDEM_COMMON_RPC_REFUSAL_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tandem::rpc {

// The largest message from a rollout server to its callers. Both sides know it: callers take no
// larger one, so a server says TOO_LARGE instead of sending what would be lost at the other end.
inline constexpr int64_t kMaxMessageBytes = 64 << 20;

enum class Refusal {
  kNone,                 // no refusal, or one without a name
  kQueueFull,            // QUEUE_FULL: max_queued_groups wait already; of scores, their most
  kDeadlineBeforeStart,  // DEADLINE_BEFORE_START: by the recent pace it would start too late
  kMemoryFull,           // MEMORY_FULL: others hold the server's memory for groups, or its KV cache
  kTooLarge,             // TOO_LARGE: this call by itself passes a limit, and will do so again
  kDeadlineTooFar,       // DEADLINE_TOO_FAR: no deadline, or one over the server's maximum
};

// Trailing metadata of a refused call.
inline constexpr char kRefusalKey[] = "tandem-refusal";
// Beside it where IsBusy: milliseconds after which to ask again.
inline constexpr char kRetryAfterKey[] = "retry-after-ms";

// "QUEUE_FULL" and so on; empty for kNone.
std::string_view RefusalName(Refusal refusal);
// kNone for a name that is not known here.
Refusal RefusalNamed(std::string_view name);

// Is the server well, and the call worth repeating when others have left?
bool IsBusy(Refusal refusal);

// An error that carries its name, and the name an error carries.
absl::Status Refused(absl::StatusCode code, Refusal refusal, const std::string& message);
Refusal RefusalOf(const absl::Status& status);

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_REFUSAL_H_
