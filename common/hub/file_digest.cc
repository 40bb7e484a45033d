#include "common/hub/file_digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::hub {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

DigestKind DigestKindOf(const std::string& etag) {
  if (!std::ranges::all_of(
          etag, [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); })) {
    return DigestKind::kUnknown;
  }
  return etag.size() == 64   ? DigestKind::kSha256
         : etag.size() == 40 ? DigestKind::kGitSha1
                             : DigestKind::kUnknown;
}

absl::StatusOr<std::string> FileDigest(const std::string& path, DigestKind kind) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (!file || error) return NotFound(path, ": ", std::strerror(errno));
  const std::unique_ptr<EVP_MD_CTX, FreeContext> context(EVP_MD_CTX_new());
  const EVP_MD* const method = kind == DigestKind::kSha256 ? EVP_sha256() : EVP_sha1();
  TANDEM_CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), method, nullptr) == 1);
  if (kind == DigestKind::kGitSha1) {
    const std::string header = absl::StrCat("blob ", size);
    EVP_DigestUpdate(context.get(), header.c_str(), header.size() + 1);
  }
  std::vector<char> piece(kPieceBytes);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    EVP_DigestUpdate(context.get(), piece.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) return Unavailable(path, ": cannot be read: ", std::strerror(errno));
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_DigestFinal_ex(context.get(), digest, &length);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), length});
}

}  // namespace tandem::hub
