#include "trainer/call_end.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cstdlib>
#include <string>

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

CallEnd CallEndOf(const grpc::ClientContext& context) {
  const double ms = std::strtod(Trailing(context, rpc::kRetryAfterKey).c_str(), nullptr);
  return {rpc::RefusalNamed(Trailing(context, rpc::kRefusalKey)),
          std::min(std::max(0.0, ms) / 1000, kLongestRetryAfterSeconds)};
}

}  // namespace tandem::trainer
