// What the gRPC context of a call tells the services: who calls and from which host, the caller's
// span, and the deadline. `Context` is a gRPC server context.
#pragma once

#include <chrono>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/observe/tracer.h"
#include "common/rpc/caller_secret.h"
#include "common/rpc/credentials.h"
#include "rollout_server/groups/ownership.h"

namespace tandem::rollout {

// The secret in the call's metadata and the name in its certificate. `run_id`: the one that the
// call names.
template <typename Context>
CallerProof ProofOf(const Context& context, std::string run_id) {
  CallerProof proof = {.run_id = std::move(run_id)};
  proof.certificate = rpc::IdentityOf(rpc::PeerOf(*context.auth_context()));
  const auto& metadata = context.client_metadata();
  if (const auto secret = metadata.find(rpc::kCallerSecretKey); secret != metadata.end()) {
    proof.secret.assign(secret->second.data(), secret->second.size());
  }
  return proof;
}

// The span in the call's `traceparent` header; none without one, or when it is malformed.
template <typename Context>
TraceContext TraceOf(const Context& context) {
  const auto& metadata = context.client_metadata();
  const auto header = metadata.find(kTraceparent);
  if (header == metadata.end()) return {};
  return ParseTraceparent({header->second.data(), header->second.size()}).value_or(TraceContext{});
}

// Seconds until the deadline; infinite without one, negative when it has passed.
template <typename Context>
double SecondsLeft(const Context& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) {
    return std::numeric_limits<double>::infinity();
  }
  return std::chrono::duration<double>(deadline - std::chrono::system_clock::now()).count();
}

// gRPC sends the timeout of a call rounded up to two or three digits, which adds at most a
// hundredth: 1234 s become 1240 s.
inline constexpr double kTimeoutRounding = 1.01;

// The code of a call that gRPC called off: DEADLINE_EXCEEDED or CANCELLED. The caller's own clock
// ends a call at its deadline earlier than this side's does, by the rounding and by the time that
// the call took to arrive.
absl::StatusCode CalledOff(double seconds_given, double seconds_left);

// The host in what gRPC calls a peer: "ipv4:10.0.0.5:43210" -> "10.0.0.5"; "ipv6:%5B::1%5D:4711"
// and "ipv6:[::1]:4711" -> "::1"; for a Unix socket this machine, "127.0.0.1". Else empty.
std::string PeerHost(const std::string& peer);

}  // namespace tandem::rollout
