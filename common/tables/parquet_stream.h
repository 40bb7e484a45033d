// A Parquet file read in a stream: its key-value metadata, and its rows as JSON lines, a part at a
// time. Used where a file may be larger than memory (drift_lab/records); parquet_rows.h reads small
// ones whole. Through the same Rust library.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

struct TandemParquet;

namespace tandem {

// An open file. Life cycle: Open, then Next until it returns an empty text. Holds the pages of one row
// group that are being read. Thread-compatible.
class ParquetStream {
 public:
  //   NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE  the file cannot be opened
  //   INVALID_ARGUMENT  no Parquet file, or a damaged one (the reason is stated)
  static absl::StatusOr<std::unique_ptr<ParquetStream>> Open(const std::string& path);
  ~ParquetStream();
  ParquetStream(const ParquetStream&) = delete;
  ParquetStream& operator=(const ParquetStream&) = delete;

  // The value of a key of the file's metadata, such as a writer of Arrow tables gives it.
  std::optional<std::string> Metadata(const std::string& key) const;

  int64_t num_rows() const;

  // The next rows, one JSON object a line with a member for each column, in the order of the file: at
  // most `max_rows`, and fewer where their text is long. Empty after the last row. Floats that are not
  // finite are the texts "NaN", "Infinity" and "-Infinity"; otherwise as ReadParquetAsJsonLines.
  //   INVALID_ARGUMENT  a damaged page or another compression; the stream is then at its end
  absl::StatusOr<std::string> Next(int64_t max_rows);

 private:
  ParquetStream(TandemParquet* handle, std::string path);

  TandemParquet* const handle_;
  const std::string path_;
};

}  // namespace tandem
