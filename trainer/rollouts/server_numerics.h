// CheckServerNumerics: can this server's log-probs be re-scored bit for bit? Pure.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/model/numerics.h"
#include "proto/rollout.pb.h"

namespace tandem::trainer {

// What `exact` asks of a server: that it keeps the promise too, in the trainer's dtype and with the
// trainer's kernels (KernelsOf, device_choice.h). Anything goes in the other modes.
//   INVALID_ARGUMENT  names what differs and what to set
absl::Status CheckServerNumerics(const rollout::v1::GetInfoResponse& info, Numerics numerics,
                                 ComputeDType dtype, const std::string& kernels);

}  // namespace tandem::trainer
