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

absl::Status CheckServerNumerics(const rollout::v1::GetInfoResponse& info,
                                 const SideNumerics& trainer) {
  // A server of a version before weights had formats says nothing.
  const std::string weights = info.weights().empty() ? "dtype" : info.weights();
  const bool fakes = trainer.weights != "dtype";
  if (fakes && trainer.adapters && info.lora() == "unmerged") {
    return InvalidArgument(
        "it quantises the weights that adapters stand beside, and trainer.fake_quantise imitates "
        "merged ones: set server.engine.lora to merged");
  }
  if ((fakes || trainer.numerics == Numerics::kExact) && weights != trainer.weights) {
    return InvalidArgument("its weights are '", weights, "', those of the trainer's forward '",
                           trainer.weights,
                           "': set trainer.fake_quantise to what server.engine has (weights, "
                           "weights_group, activations, quantise_head, weights_by_layer)");
  }
  if (trainer.numerics != Numerics::kExact) return absl::OkStatus();
  if (info.numerics() != NumericsName(Numerics::kExact)) {
    return InvalidArgument("it runs with numerics '", info.numerics(),
                           "', the trainer with exact: set server.engine.numerics=exact");
  }
  const std::string own_dtype = trainer.dtype == ComputeDType::kBf16 ? "bf16" : "fp32";
  if (info.dtype() != own_dtype) {
    return InvalidArgument(
        "it computes in ", info.dtype(), ", the trainer in ", own_dtype,
        ": numerics exact needs trainer.dtype and server.engine.dtype to be the same");
  }
  if (info.instruction_set() != trainer.kernels) {
    return InvalidArgument(
        "its kernels use ", info.instruction_set(), ", the trainer's ", trainer.kernels,
        ": numerics exact needs the same; set TANDEM_INSTRUCTION_SET to the lesser "
        "one on both sides, or "
        "server.engine.device and trainer.device to the same kind of device");
  }
  return absl::OkStatus();
}

}  // namespace tandem::trainer
