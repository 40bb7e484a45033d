#include "common/rpc/bearer_tokens.h"

#include <openssl/crypto.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files/file_system.h"

namespace tandem::rpc {

absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  std::vector<std::string> tokens;
  for (const auto line : absl::StrSplit(*text, '\n')) {
    std::string token(absl::StripAsciiWhitespace(line));
    if (token.empty()) continue;
    if (token.size() < kMinTokenBytes || !std::ranges::all_of(token, absl::ascii_isgraph)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": a token must have at least ", kMinTokenBytes,
          " characters, printable and without spaces: `openssl rand -hex 32` makes one"));
    }
    tokens.push_back(std::move(token));
  }
  if (tokens.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no token: one per line; `openssl rand -hex 32` makes one"));
  }
  return tokens;
}

bool TokenIsRight(const std::vector<std::string>& tokens, std::string_view authorization) {
  constexpr std::string_view kScheme = "Bearer ";
  if (authorization.substr(0, kScheme.size()) != kScheme) return false;
  const std::string_view offered = authorization.substr(kScheme.size());
  bool right = false;
  for (const std::string& token : tokens) {
    if (token.size() != offered.size()) continue;  // lengths are not secret
    right |= CRYPTO_memcmp(token.data(), offered.data(), token.size()) == 0;
  }
  return right;
}

}  // namespace tandem::rpc
