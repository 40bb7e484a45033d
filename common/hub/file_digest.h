// Digests by which the Hugging Face Hub names the contents of a file: SHA-256 for large files (LFS),
// and git's SHA-1 of a blob for the others. Used by blob_download.cc.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem::hub {

enum class DigestKind {
  kSha256,   // 64 hexadecimal digits
  kGitSha1,  // 40: SHA-1 of "blob SIZE\0" and the contents
  kUnknown,
};

// What `etag` is a digest of, by its form.
DigestKind DigestKindOf(const std::string& etag);

// The digest of a whole file in lower-case hexadecimal digits. `kind` is not kUnknown.
//   NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE  the file cannot be read
absl::StatusOr<std::string> FileDigest(const std::string& path, DigestKind kind);

}  // namespace tandem::hub
