// Reads and writes files of capture format 3 (docs/records.md): JSON lines and Parquet, told apart by
// their first bytes. Used by `tandem drift check`, `why` and `import`. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "drift_lab/records/records.h"

namespace tandem::drift {

// True if the file at `path` begins like a file of format 3: with a JSON object that has
// "tandem_capture", or as Parquet. False for directories and for what cannot be read.
bool IsRecordsFile(const std::string& path);

// Called now and then with the bytes read so far and those of the whole file.
using ReadProgress = absl::FunctionRef<void(int64_t bytes, int64_t total_bytes)>;

// Reads in a stream: beside the records, one row (JSON lines) or one row group (Parquet) is held.
//   NOT_FOUND         no such file
//   INVALID_ARGUMENT  not a file of format 3, another format version, a field that docs/records.md
//                     does not have, a wrong type or length, an id outside the vocabulary. The
//                     message says path, line or row, field, what was expected and what is there.
//   errors of file_system.h
absl::StatusOr<Records> ReadRecords(const std::string& path, ReadProgress progress);
absl::StatusOr<Records> ReadRecords(const std::string& path);

// Writes JSON lines, atomically. Reading the file back gives the same records.
//   errors of WriteFileAtomically
absl::Status WriteRecords(const std::string& path, const Records& records);

}  // namespace tandem::drift
