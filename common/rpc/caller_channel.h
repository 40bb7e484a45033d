// CallerArguments: what every channel to a rollout server that is kept is made with. gRPC stays
// behind this header.
#ifndef TANDEM_COMMON_RPC_CALLER_CHANNEL_H_
#define TANDEM_COMMON_RPC_CALLER_CHANNEL_H_

namespace grpc {
class ChannelArguments;
}

namespace tandem::rpc {

// Either side asks a connection that was silent for so long whether it lives, and gives it up when
// no answer comes: one that swallows packets is found long before the deadline of a call.
inline constexpr int kKeepaliveMs = 20'000;
inline constexpr int kKeepaliveTimeoutMs = 10'000;
// Servers bear pings down to this distance.
inline constexpr int kLeastPingDistanceMs = 5'000;

// With keepalives while a call waits, quick attempts to connect again, and room for 64 MiB.
grpc::ChannelArguments CallerArguments();

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_CALLER_CHANNEL_H_
