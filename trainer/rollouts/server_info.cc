#include "trainer/rollouts/server_info.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"

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

absl::Status CheckServerNumerics(const rollout::v1::GetInfoResponse& info, Numerics numerics,
                                 ComputeDType dtype, const std::string& kernels) {
  if (numerics != Numerics::kExact) return absl::OkStatus();
  if (info.numerics() != NumericsName(Numerics::kExact)) {
    return InvalidArgument("it runs with numerics '", info.numerics(),
                           "', the trainer with exact: set server.engine.numerics=exact");
  }
  const std::string own_dtype = dtype == ComputeDType::kBf16 ? "bf16" : "fp32";
  if (info.dtype() != own_dtype) {
    return InvalidArgument(
        "it computes in ", info.dtype(), ", the trainer in ", own_dtype,
        ": numerics exact needs trainer.dtype and server.engine.dtype to be the same");
  }
  if (info.instruction_set() != kernels) {
    return InvalidArgument(
        "its kernels use ", info.instruction_set(), ", the trainer's ", kernels,
        ": numerics exact needs the same; set TANDEM_INSTRUCTION_SET to the lesser "
        "one on both sides, or "
        "server.engine.device and trainer.device to the same kind of device");
  }
  return absl::OkStatus();
}

}  // namespace tandem::trainer
