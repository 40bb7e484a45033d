// Rows of Parquet files, the format of data sets on the Hugging Face Hub, as JSON lines, so that a
// reader of JSON lines reads both. Through the `parquet` crate of Apache Arrow, which stands beside
// the tokenizers in one Rust library; Arrow C++ is no package of Debian 12.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem {

// The rows of the file at `path`, one JSON object a line with a member for each column, in the
// order of the file. Nested columns are arrays and objects, bytes that are not text are base64, and
// floats that are not finite are texts ("NaN"). Pages may be compressed with Snappy, gzip or
// Zstandard. Holds the file and its rows in memory at once.
//   errors of ReadFile
//   INVALID_ARGUMENT  no Parquet file, a damaged one, or another compression (the reason is stated)
absl::StatusOr<std::string> ReadParquetAsJsonLines(const std::string& path);

}  // namespace tandem
