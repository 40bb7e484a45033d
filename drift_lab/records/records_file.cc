// ReadRecords: both forms give lines of JSON, which one parser reads.
#include "drift_lab/records/records_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/printable.h"
#include "common/base/status_macros.h"
#include "common/tables/parquet_stream.h"
#include "drift_lab/records/json_rows.h"
#include "drift_lab/records/records_builder.h"
#include "drift_lab/records/records_form.h"
#include "drift_lab/records/records_header.h"

namespace tandem::drift {
namespace {

constexpr char kMetadataKey[] = "tandem_capture";

// Lines of a file of any length, one at a time.
class LineFile {
 public:
  static absl::StatusOr<std::unique_ptr<LineFile>> Open(const std::string& path) {
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) return absl::ErrnoToStatus(errno, path);
    return std::unique_ptr<LineFile>(new LineFile(file, path));
  }
  ~LineFile() {
    std::free(buffer_);
    std::fclose(file_);
  }
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // The next line that is not empty, which is valid until the next call. None at the end.
  absl::StatusOr<std::optional<std::string_view>> Next() {
    for (;;) {
      const ssize_t length = getline(&buffer_, &capacity_, file_);
      if (length < 0) break;
      ++number_;
      bytes_ += length;
      const std::string_view line(buffer_, static_cast<size_t>(length));
      if (line.find_first_not_of(" \t\r\n") != std::string_view::npos) return line;
    }
    if (std::ferror(file_) != 0) return absl::ErrnoToStatus(errno, path_);
    return std::nullopt;
  }
  int64_t number() const { return number_; }  // of the last line, counted from 1
  int64_t bytes() const { return bytes_; }    // read so far

 private:
  LineFile(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}

  std::FILE* const file_;
  const std::string path_;
  char* buffer_ = nullptr;
  size_t capacity_ = 0;
  int64_t number_ = 0, bytes_ = 0;
};

// Parses `line` into `row`, which is only memory that is used again, and appends it. `place` is the
// place of the row for messages.
absl::Status AddLine(std::string_view line, const std::function<std::string()>& place,
                     RecordRow& row, RecordsBuilder& builder) {
  absl::Status status = ParseRow(line, row);
  if (status.ok()) status = builder.AddRow(row);
  if (status.ok()) return status;
  const std::string& id = row.facts.row_id;
  return InvalidArgument(place(), id.empty() ? "" : absl::StrCat(" (row \"", Printable(id), "\")"),
                         ": ", status.message());
}

absl::StatusOr<Records> ReadJsonLines(const std::string& path, int64_t total_bytes,
                                      ReadProgress progress) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<LineFile> file, LineFile::Open(path));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string_view> first, file->Next());
  const auto place = [&] { return absl::StrCat(path, ":", file->number()); };
  if (!first) {
    return InvalidArgument(path,
                           ": expected a header line and rows, found empty lines only: did "
                           "its writer end early? ",
                           kImportAdvice);
  }
  absl::StatusOr<RecordsHeader> header = ParseHeader(*first);
  if (!header.ok()) return InvalidArgument(place(), ": ", header.status().message());
  RecordsBuilder builder(path, *std::move(header));
  RecordRow row;
  constexpr int64_t kBytesBetween = 1 << 20;
  for (int64_t next_progress = kBytesBetween;;) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string_view> line, file->Next());
    if (!line) break;
    TANDEM_RETURN_IF_ERROR(AddLine(*line, place, row, builder));
    if (file->bytes() >= next_progress) {
      progress(file->bytes(), total_bytes);
      next_progress = file->bytes() + kBytesBetween;
    }
  }
  return builder.Finish();
}

absl::StatusOr<RecordsHeader> ParquetHeader(const std::string& path, const ParquetStream& file) {
  const std::optional<std::string> text = file.Metadata(kMetadataKey);
  if (!text) {
    return InvalidArgument(path, ": expected the header in the key-value metadata under `",
                           kMetadataKey, "` (docs/records.md), found no such key: ", kImportAdvice);
  }
  absl::StatusOr<RecordsHeader> header = ParseHeader(*text);
  if (header.ok()) return header;
  return InvalidArgument(path, ": metadata `", kMetadataKey, "`: ", header.status().message());
}

absl::StatusOr<Records> ReadParquet(const std::string& path, int64_t total_bytes,
                                    ReadProgress progress) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ParquetStream> file, ParquetStream::Open(path));
  TANDEM_ASSIGN_OR_RETURN(RecordsHeader header, ParquetHeader(path, *file));
  RecordsBuilder builder(path, std::move(header));
  const auto place = [&] { return absl::StrCat(path, ": row ", builder.num_rows()); };
  RecordRow row;
  constexpr int64_t kRowsAtOnce = 256;
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const std::string lines, file->Next(kRowsAtOnce));
    if (lines.empty()) break;
    for (const absl::string_view line : absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      TANDEM_RETURN_IF_ERROR(AddLine({line.data(), line.size()}, place, row, builder));
    }
    const double share =
        static_cast<double>(builder.num_rows()) / static_cast<double>(file->num_rows());
    progress(static_cast<int64_t>(share * static_cast<double>(total_bytes)), total_bytes);
  }
  return builder.Finish();
}

}  // namespace

absl::StatusOr<Records> ReadRecords(const std::string& path, ReadProgress progress) {
  TANDEM_ASSIGN_OR_RETURN(const RecordsForm form, FormOf(path));
  std::error_code ignored;
  const auto total_bytes = static_cast<int64_t>(std::filesystem::file_size(path, ignored));
  return form == RecordsForm::kParquet ? ReadParquet(path, total_bytes, progress)
                                       : ReadJsonLines(path, total_bytes, progress);
}

absl::StatusOr<Records> ReadRecords(const std::string& path) {
  return ReadRecords(path, [](int64_t, int64_t) {});
}

}  // namespace tandem::drift
