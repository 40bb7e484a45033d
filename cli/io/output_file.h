// Files that a command writes where its user says (--html, --json-out, --out). Every error here is one
// of storage, exit code 7: a folder that is not there is no bad data.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tandem::cli {

// OK if `path` is empty or the folder that it lies in is there. Commands that take long ask this before
// they begin.
//   NOT_FOUND with exit code 7  no such folder; the message says how to make it
absl::Status CheckOutputFolder(const std::string& path);

// WriteFileAtomically into a folder that is there.
absl::Status WriteOutputFile(const std::string& path, std::string_view contents);

}  // namespace tandem::cli
