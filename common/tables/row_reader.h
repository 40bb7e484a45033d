// RowReader: the rows of a data set, one after the other, whatever it is kept in: a file, several
// files, or a directory of the Hugging Face Hub or of the library `datasets`. Everything that reads
// prompts, answers or preferences of users reads them through this.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/tables/dataset_files.h"
#include "common/tables/table_file.h"

namespace tandem {

struct TableRow {
  std::string_view json;  // as it stands, not yet parsed; valid until the next call of Next
  std::string place;      // "FILE:LINE" in JSON lines, else "FILE: row N"; both from 1
  // Counted over all files of the data set, from 0. In JSON lines blank ones count, so that the
  // number is that of the line.
  int64_t number = 0;
};

// Reads files in their order. Life cycle: Open, then Next until it returns nothing or an error.
// Holds one file open, and a part of it as TableFile says. Thread-compatible.
class RowReader {
 public:
  // Opens what FindDatasetFiles finds at `path`.
  //   errors of FindDatasetFiles and of TableFile::Open for the first file
  static absl::StatusOr<std::unique_ptr<RowReader>> Open(const std::string& path,
                                                         const DatasetPart& part = {});

  // The next row; nothing after the last. Blank lines are passed over.
  //   errors of TableFile
  absl::StatusOr<std::optional<TableRow>> Next();

  const DatasetFiles& dataset() const { return dataset_; }
  int64_t num_counted() const { return next_number_; }  // rows so far, blank lines included

 private:
  explicit RowReader(DatasetFiles dataset) : dataset_(std::move(dataset)) {}
  absl::Status OpenFile();

  const DatasetFiles dataset_;
  std::unique_ptr<TableFile> file_;
  size_t file_index_ = 0;
  std::string part_;  // rows that are read
  size_t done_ = 0;   // bytes of part_ that are used
  int64_t number_in_file_ = 0;
  int64_t next_number_ = 0;
};

}  // namespace tandem
