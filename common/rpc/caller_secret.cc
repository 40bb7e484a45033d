#include "common/rpc/caller_secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>

#include "absl/strings/escaping.h"
#include "common/base/check.h"

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

}  // namespace tandem::rpc
