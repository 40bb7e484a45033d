// WhyHung: is a rollout server that answers of no use, because its engine does not move? Pure. Used
// by rollout_client.cc.
#pragma once

#include <string>

#include "proto/rollout.pb.h"

namespace tandem::trainer {

// Why the server is of no use for now; empty when it is. Its gRPC threads answer GetInfo while its
// engine hangs in a step, and every group asked for there would end at its deadline. So the
// engine's silence counts from what the server itself calls too long (its /livez), or from as long
// as a group may take here.
std::string WhyHung(const rollout::v1::GetInfoResponse& info, double call_timeout_seconds);

}  // namespace tandem::trainer
