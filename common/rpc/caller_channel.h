// CallerChannel: a caller's connection to one rollout server, which is replaced after failures.
// gRPC is not visible in this header. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/rpc/credentials.h"

namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace tandem::rpc {

// Each side pings a connection that was silent for this long, and gives it up if no answer comes. A
// connection that drops packets is therefore found long before the deadline of a call.
inline constexpr int kKeepaliveMs = 20'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;
// Servers accept pings at this distance or more.
inline constexpr int kLeastPingDistanceMs = 5'000;

// A gRPC channel that failed to connect rejects calls until it has connected. While no call waits
// on it, gRPC 1.51 retries only every 5 s, and 5 s is also the limit of an attempt; a TLS handshake
// of several round trips then fails again and again although the server is up. A new channel
// connects while its first call waits. So a channel is replaced as soon as one of its calls found
// no server. CallerChannels do not share connections, so that a push does not queue behind
// completions.
class CallerChannel {
 public:
  CallerChannel(std::string address, Caller caller);

  const std::string& address() const { return address_; }

  // The channel for the next call, which connects with that call. It sends keepalives while a call
  // waits, and accepts messages up to kMaxMessageBytes (refusal.h).
  std::shared_ptr<grpc::Channel> current();

  // Adds the caller's secret for this server to a call. Do this to each call before it is made.
  void Identify(grpc::ClientContext* context) const;

  // Reports how a call on `used` ended. After UNAVAILABLE and DEADLINE_EXCEEDED, later calls use
  // another connection; calls in progress keep theirs.
  void Ended(const std::shared_ptr<grpc::Channel>& used, const grpc::Status& status);

 private:
  const std::string address_;
  const Caller caller_;
  const std::string secret_;  // the caller's secret for this server

  Mutex mu_;
  // Shared with calls; null: make one.
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::rpc
