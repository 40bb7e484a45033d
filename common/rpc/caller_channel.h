// CallerChannel: the way of a caller to one rollout server, kept over its failures. gRPC stays
// behind this header. Thread-safe.
#ifndef TANDEM_COMMON_RPC_CALLER_CHANNEL_H_
#define TANDEM_COMMON_RPC_CALLER_CHANNEL_H_

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

// Either side asks a connection that was silent for so long whether it lives, and gives it up when
// no answer comes: one that swallows packets is found long before the deadline of a call.
inline constexpr int kKeepaliveMs = 20'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;
// Servers bear pings down to this distance.
inline constexpr int kLeastPingDistanceMs = 5'000;

// A gRPC channel that could not connect refuses calls at once until it has connected, and while
// nobody waits on it gRPC 1.51 looks after it every 5 s only, which is also the deadline of an
// attempt: a TLS handshake, of several round trips, then fails again and again with a server that
// is up. A channel that is made anew connects while its first call waits. So none is used again
// after a call of it found no server. Connections are not shared between CallerChannels: a push
// does not queue behind completions.
class CallerChannel {
 public:
  CallerChannel(std::string address, Caller caller);

  const std::string& address() const { return address_; }

  // What to make the next call on; connects with that call. With keepalives while a call waits, and
  // room for messages of kMaxMessageBytes (refusal.h).
  std::shared_ptr<grpc::Channel> current();

  // To be done to each call before it is made: it then shows the caller's secret for this server.
  void Identify(grpc::ClientContext* context) const;

  // To be told how a call on `used` ended. UNAVAILABLE and DEADLINE_EXCEEDED: calls to come are
  // made on another connection; those under way keep theirs.
  void Ended(const std::shared_ptr<grpc::Channel>& used, const grpc::Status& status);

 private:
  const std::string address_;
  const Caller caller_;
  const std::string secret_;  // of the caller, for this server

  Mutex mu_;
  std::shared_ptr<grpc::Channel> channel_ ABSL_GUARDED_BY(mu_);  // shared with calls; null: none
};

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_CALLER_CHANNEL_H_
