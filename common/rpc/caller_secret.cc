#include "common/rpc/caller_secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"

namespace tandem::rpc {
namespace {

constexpr size_t kRandomBytes = 32;

std::string Hex(const unsigned char* bytes, size_t size) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes), size});
}

}  // namespace

std::string NewSecret() {
  std::array<unsigned char, kRandomBytes> bytes;
  TANDEM_CHECK(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1);
  return Hex(bytes.data(), bytes.size());
}

std::string KeyedDigest(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  TANDEM_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                    reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
                    &size) != nullptr);
  return Hex(digest.data(), size);
}

std::string SecretForServer(const std::string& secret, const std::string& address) {
  return KeyedDigest(secret, address);
}

bool SecretsMatch(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;  // lengths are not secret
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return InvalidArgument(text.status().message());
  std::vector<std::string> tokens;
  for (const auto line : absl::StrSplit(*text, '\n')) {
    std::string token(absl::StripAsciiWhitespace(line));
    if (token.empty()) continue;
    if (token.size() < kMinTokenBytes || !std::ranges::all_of(token, absl::ascii_isgraph)) {
      return InvalidArgument(
          path, ": a token must have at least ", kMinTokenBytes,
          " characters, printable and without spaces: `openssl rand -hex 32` makes one");
    }
    tokens.push_back(std::move(token));
  }
  if (tokens.empty()) {
    return InvalidArgument(path, ": no token: one per line; `openssl rand -hex 32` makes one");
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
