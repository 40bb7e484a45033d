// BearerTokens: the secrets of a token file, one per line. A server takes any of them, a caller
// sends the first: during a rotation the file of the servers holds both. Pure but for reading the
// file.
#ifndef TANDEM_COMMON_RPC_BEARER_TOKENS_H_
#define TANDEM_COMMON_RPC_BEARER_TOKENS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::rpc {

inline constexpr size_t kMinTokenBytes = 16;  // shorter ones can be guessed

// Lines without the space around them; empty ones are skipped.
//   INVALID_ARGUMENT  unreadable; no token; a token under kMinTokenBytes, or of other bytes than
//                     printable ASCII without spaces. Names the file, never what it holds
absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& path);

// Is `authorization` "Bearer TOKEN" of one of them? Takes as long for a token that is nearly right
// as for one that is not.
bool TokenIsRight(const std::vector<std::string>& tokens, std::string_view authorization);

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_BEARER_TOKENS_H_
