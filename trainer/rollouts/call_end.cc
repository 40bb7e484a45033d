#include "trainer/rollouts/call_end.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "common/base/status_macros.h"
#include "common/rpc/grpc_call.h"
#include "common/rpc/refusal.h"

namespace tandem::trainer {
namespace {

constexpr double kLongestRetryAfterSeconds = 60;  // whatever a server asks for

// An entry of the trailing metadata; empty if there is none.
std::string Trailing(const grpc::ClientContext& context, const char* key) {
  const auto& trailer = context.GetServerTrailingMetadata();
  const auto found = trailer.find(key);
  return found == trailer.end() ? "" : std::string(found->second.data(), found->second.size());
}

}  // namespace

bool CallEnd::is_busy() const {
  const rpc::Refusal refusal = rpc::RefusalOf(status);
  return rpc::IsBusy(refusal) || (refusal == rpc::Refusal::kNone && retry_after_seconds > 0);
}

CallEnd EndOf(const grpc::ClientContext& context, const grpc::Status& status) {
  if (status.ok()) return {};
  // A current gRPC cancels a call whose answer is over the limit and loses the reason on its way.
  // Servers cancel no call that has a caller, and what a caller cancels here it looks at no more.
  if (status.error_code() == grpc::StatusCode::CANCELLED && status.error_message().empty()) {
    return {ResourceExhausted(
        "gRPC ended the call here without a word, as it does for an answer larger than max (",
        rpc::kMaxMessageBytes, " bytes)")};
  }
  const double ms = std::strtod(Trailing(context, rpc::kRetryAfterKey).c_str(), nullptr);
  const rpc::Refusal refusal = rpc::RefusalNamed(Trailing(context, rpc::kRefusalKey));
  return {rpc::Refused(refusal, absl::Status(rpc::CodeOf(status), status.error_message())),
          std::min(std::max(0.0, ms) / 1000, kLongestRetryAfterSeconds)};
}

bool IsImpossible(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument ||
         rpc::RefusalOf(status) == rpc::Refusal::kTooLarge;
}

bool ServerIsFine(const absl::Status& status) {
  // RESOURCE_EXHAUSTED: refused, or from gRPC itself: a message that is too large.
  return status.ok() || absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status) ||
         absl::IsAborted(status) || absl::IsDataLoss(status);
}

}  // namespace tandem::trainer
