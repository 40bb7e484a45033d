// Caller secrets: a value that a caller shows with every call, so that a server can tell its
// actions from those of others. A run owns its servers by it, and a group can be ended only by the
// caller that asked for it. A process has one secret, and shows each server another value derived
// from it, so that a server cannot use what it was shown at other servers. Pure except for
// NewSecret.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::rpc {

// The gRPC metadata key for the secret.
inline constexpr char kCallerSecretKey[] = "tandem-caller-secret";

inline constexpr size_t kMinCallerSecretBytes = 32;  // shorter ones can be guessed
inline constexpr size_t kMaxCallerSecretBytes = 256;

// 64 hex digits of 256 random bits. Ends the process if the system has no randomness.
std::string NewSecret();

// HMAC-SHA256 of `text` under `key`, 64 hex digits.
std::string KeyedDigest(std::string_view key, std::string_view text);

// The value that the server at `address` is shown: the keyed digest of the address as the caller
// spells it. The same spelling gives the same value in another process.
std::string SecretForServer(const std::string& secret, const std::string& address);

// Compares in constant time (for equal lengths).
bool SecretsMatch(std::string_view one, std::string_view other);

// BearerTokens: the secrets of a token file, one per line. A server accepts any of them and a
// caller sends the first, so that during a rotation the servers' file holds the token before and
// after. Pure except for reading the file.

inline constexpr size_t kMinTokenBytes = 16;  // shorter ones can be guessed

// Returns the lines of the file without surrounding spaces, skipping empty ones.
//   INVALID_ARGUMENT  the file is unreadable or has no token; a token is shorter than
//                     kMinTokenBytes or has bytes other than printable ASCII without spaces. The
//                     message names the file, and never its contents
absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& path);

// True if `authorization` is "Bearer TOKEN" with one of the tokens. Takes constant time for tokens
// of equal length.
bool TokenIsRight(const std::vector<std::string>& tokens, std::string_view authorization);

}  // namespace tandem::rpc
