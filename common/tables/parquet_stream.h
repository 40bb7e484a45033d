// A Parquet file read in a stream: its key-value metadata, and its rows as JSON lines, a part at a
// time. Used for records (drift_lab), whose header is metadata; row_reader.h reads data sets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct TandemParquet;

namespace tandem {

// The error of a file that the crate refuses for the reason `text`. Where it lacks the codec of the
// pages, it says how to write the file anew.
absl::Status ParquetFault(const std::string& path, const std::string& text);

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
  // finite are the texts "NaN", "Infinity" and "-Infinity", and bytes are base64.
  //   INVALID_ARGUMENT  a damaged page or another compression; the stream is then at its end
  absl::StatusOr<std::string> Next(int64_t max_rows);

 private:
  ParquetStream(TandemParquet* handle, std::string path);

  TandemParquet* const handle_;
  const std::string path_;
};

}  // namespace tandem
