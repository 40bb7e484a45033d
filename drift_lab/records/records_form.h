// Tells the form of a file from its first bytes, and what a file that is no records file is instead.
// Used by the reader of records files (records_file.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem::drift {

// The end of the message about a file that may be another framework's.
inline constexpr char kImportAdvice[] =
    "`tandem drift import --from NAME FILE --out records.jsonl` makes records of what other "
    "frameworks write";

enum class RecordsForm { kJsonLines, kParquet };

//   NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE  it cannot be opened
//   INVALID_ARGUMENT  a directory, an empty file, or a file that begins like another kind: compressed
//                     as a whole, pickled, with a byte order mark. The message says what it is and what
//                     to do.
absl::StatusOr<RecordsForm> FormOf(const std::string& path);

}  // namespace tandem::drift
