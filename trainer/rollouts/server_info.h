// Verdicts on a rollout server from what it says of itself (GetInfo): whether its engine hangs, and
// whether its log-probs can be re-scored bit for bit. Pure. Used by rollout_client.cc and
// run_setup.cc.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/model/numerics.h"
#include "proto/rollout.pb.h"

namespace tandem::trainer {

// Why the engine of the server hangs; empty when it does not. The server's gRPC threads answer
// GetInfo while its engine hangs in a step, and every group asked for there would end at its
// deadline. So an engine hangs once it has been silent for longer than the server itself allows
// (its /livez), or for longer than a group may take here.
std::string WhyHung(const rollout::v1::GetInfoResponse& info, double call_timeout_seconds);

// How a side of the run computes.
struct SideNumerics {
  Numerics numerics = Numerics::kFast;
  ComputeDType dtype = ComputeDType::kFp32;
  std::string kernels;            // KernelsOf, device_choice.h
  std::string weights = "dtype";  // PlanText of their number formats
  bool adapters = false;          // trains adapters (LoRA)
};

// With numerics `exact` a server must keep the promise too, in the trainer's dtype, with the
// trainer's kernels and with weights of the same formats. The other modes take any server, except
// that a trainer which fakes a server's quantisation must have the same formats, and with adapters a
// server that merges them.
//   INVALID_ARGUMENT  names what differs and what to set
absl::Status CheckServerNumerics(const rollout::v1::GetInfoResponse& info,
                                 const SideNumerics& trainer);

}  // namespace tandem::trainer
