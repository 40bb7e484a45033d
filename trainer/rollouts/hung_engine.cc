#include "trainer/rollouts/hung_engine.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace tandem::trainer {

std::string WhyHung(const rollout::v1::GetInfoResponse& info, double call_timeout_seconds) {
  const double silent = static_cast<double>(info.engine_silent_ms()) / 1e3;
  const double servers = static_cast<double>(info.max_engine_silent_ms()) / 1e3;
  const double most = servers > 0 ? std::min(servers, call_timeout_seconds) : call_timeout_seconds;
  if (silent < most) return "";
  return absl::StrFormat(
      "its engine has work and has not moved for %.1f s: a server hangs from %.1f s on, the less "
      "of its server.liveness_seconds and trainer.client.call_timeout_seconds",
      silent, most);
}

}  // namespace tandem::trainer
