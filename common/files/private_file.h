// Files that only their owner can read, from their first byte on: keys and secrets.
#ifndef TANDEM_COMMON_FILES_PRIVATE_FILE_H_
#define TANDEM_COMMON_FILES_PRIVATE_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tandem {

// Writes PATH.tmp with mode 0600, fsyncs it and renames it. On failure the existing file stays.
//   UNAVAILABLE  it cannot be written (the message has path and reason)
absl::Status WritePrivateFile(const std::string& path, std::string_view contents);

}  // namespace tandem

#endif  // TANDEM_COMMON_FILES_PRIVATE_FILE_H_
