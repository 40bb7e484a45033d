#include "rollout_server/service/call_context.h"

#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace tandem::rollout {

absl::StatusCode CalledOff(double seconds_given, double seconds_left) {
  constexpr double kTransitSeconds = 0.1;
  return std::isfinite(seconds_given) &&
                 seconds_left <= seconds_given * (kTimeoutRounding - 1) + kTransitSeconds
             ? absl::StatusCode::kDeadlineExceeded
             : absl::StatusCode::kCancelled;
}

std::string PeerHost(const std::string& peer) {
  if (absl::StartsWith(peer, "unix:")) return "127.0.0.1";
  const size_t end = peer.rfind(':');
  if (absl::StartsWith(peer, "ipv4:") && end > 4) return peer.substr(5, end - 5);
  if (!absl::StartsWith(peer, "ipv6:") || end <= 4) return "";
  const std::string host =
      absl::StrReplaceAll(peer.substr(5, end - 5), {{"%5B", "["}, {"%5D", "]"}});
  if (host.size() < 2 || host.front() != '[' || host.back() != ']') return "";
  return host.substr(1, host.size() - 2);
}

}  // namespace tandem::rollout
