// BearerTokens: the secrets of a token file, one per line. A server accepts any of them and a
// caller sends the first, so that during a rotation the servers' file holds the token before and
// after. Pure except for reading the file.
#ifndef TANDEM_COMMON_RPC_BEARER_TOKENS_H_
#define TANDEM_COMMON_RPC_BEARER_TOKENS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::rpc {

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

#endif  // TANDEM_COMMON_RPC_BEARER_TOKENS_H_
