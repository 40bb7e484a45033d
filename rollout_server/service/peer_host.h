// The host in what gRPC calls a peer: where a call comes from. Pure.
#pragma once

#include <string>

namespace tandem::rollout {

// "ipv4:10.0.0.5:43210" -> "10.0.0.5"; "ipv6:%5B::1%5D:4711" and "ipv6:[::1]:4711" -> "::1"; a Unix
// socket is this machine's: "127.0.0.1". Empty for what is none of these.
std::string PeerHost(const std::string& peer);

}  // namespace tandem::rollout
