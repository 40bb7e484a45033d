// Caller secrets: what a caller shows with every call, so that what it did can be told from what
// others do: a run owns its servers by it, and a group is ended only by who asked for it. A process
// has one secret, and each server is shown another value derived from it: a server that repeats
// what it was shown gets in nowhere else. Pure but for NewSecret.
#ifndef TANDEM_COMMON_RPC_CALLER_SECRET_H_
#define TANDEM_COMMON_RPC_CALLER_SECRET_H_

#include <string>
#include <string_view>

namespace tandem::rpc {

// The key of the gRPC metadata that carries it.
inline constexpr char kCallerSecretKey[] = "tandem-caller-secret";

inline constexpr size_t kMinCallerSecretBytes = 32;  // shorter ones can be guessed
inline constexpr size_t kMaxCallerSecretBytes = 256;

// 64 hex digits of 256 random bits. Ends the process where the system has no randomness.
std::string NewSecret();

// HMAC-SHA256 of `text` under `key`, 64 hex digits.
std::string KeyedDigest(std::string_view key, std::string_view text);

// What `secret` is to the server at `address`: the keyed digest of the address, as the
// caller names it. The same name gives the same value in another process.
std::string SecretForServer(const std::string& secret, const std::string& address);

// Takes as long for a secret that is nearly right as for one that is not.
bool SecretsMatch(std::string_view one, std::string_view other);

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_CALLER_SECRET_H_
