// TableFile: the rows of one file in any of the formats that data sets come in, as JSON lines, so
// that a reader of JSON lines reads all of them. Through the crates of Apache Arrow, csv and
// serde_json, which stand beside the tokenizers in one Rust library. Used by row_reader.h.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

struct TandemTable;

namespace tandem {

enum class TableFormat { kJsonLines, kJson, kCsv, kTsv, kParquet, kArrow };

// "Parquet", as a person names the format.
std::string_view TableFormatName(TableFormat format);

// The format that the ending of a name says: .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow or
// .feather. The first five may be followed by .gz or .zst. Empty for any other ending.
std::optional<TableFormat> TableFormatOf(std::string_view name);

// An open file. Life cycle: Open, then Next until it returns an empty text. Thread-compatible.
//
// What a row becomes: nested columns are arrays and objects, nulls are null, times are ISO 8601,
// bytes are hexadecimal, and floats that are not finite are texts ("NaN"). Cells of CSV and TSV are
// texts as they are written, and empty ones are null. JSON comes as it stands in the file.
// Memory: a part of about a megabyte; in Parquet the pages of a row group that are being read, in
// Arrow one record batch, and for a JSON array the file twice.
class TableFile {
 public:
  //   NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE  the file cannot be opened
  //   INVALID_ARGUMENT  the file is damaged or of another format, CSV without a header, or two
  //                     columns of one name (the reason is stated)
  static absl::StatusOr<std::unique_ptr<TableFile>> Open(const std::string& path,
                                                         TableFormat format);
  ~TableFile();
  TableFile(const TableFile&) = delete;
  TableFile& operator=(const TableFile&) = delete;

  // The names of the columns; empty for JSON, which does not state them.
  std::vector<std::string> Columns() const;

  // Whether Next gives lines of the file, blank ones included, as JSON lines have them. A file named
  // .json may hold either.
  bool are_lines() const;

  // The next rows, one JSON object a line. Empty after the last row.
  //   INVALID_ARGUMENT  a damaged part, or a record with another number of cells (its line); the
  //                     file is then at its end
  absl::StatusOr<std::string> Next();

 private:
  TableFile(TandemTable* handle, std::string path, TableFormat format);

  TandemTable* const handle_;
  const std::string path_;
  const TableFormat format_;
};

}  // namespace tandem
