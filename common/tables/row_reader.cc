#include "common/tables/row_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<RowReader>> RowReader::Open(const std::string& path,
                                                           const DatasetPart& part) {
  TANDEM_ASSIGN_OR_RETURN(DatasetFiles dataset, FindDatasetFiles(path, part));
  std::unique_ptr<RowReader> reader(new RowReader(std::move(dataset)));
  TANDEM_RETURN_IF_ERROR(reader->OpenFile());
  return reader;
}

absl::Status RowReader::OpenFile() {
  const DatasetFile& file = dataset_.files[file_index_];
  TANDEM_ASSIGN_OR_RETURN(file_, TableFile::Open(file.path, file.format));
  number_in_file_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TableRow>> RowReader::Next() {
  while (true) {
    if (done_ == part_.size()) {
      TANDEM_ASSIGN_OR_RETURN(part_, file_->Next());
      done_ = 0;
      if (!part_.empty()) continue;
      if (file_index_ + 1 == dataset_.files.size()) return std::nullopt;
      ++file_index_;
      TANDEM_RETURN_IF_ERROR(OpenFile());
      continue;
    }
    const size_t end = std::min(part_.find('\n', done_), part_.size());
    std::string_view line = std::string_view(part_).substr(done_, end - done_);
    done_ = std::min(end + 1, part_.size());
    const int64_t number = next_number_++;
    ++number_in_file_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const char* const separator = file_->are_lines() ? ":" : ": row ";
    return TableRow{
        .json = line,
        .place = absl::StrCat(dataset_.files[file_index_].path, separator, number_in_file_),
        .number = number};
  }
}

}  // namespace tandem
