#include "drift_lab/records/records_form.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "drift_lab/records/records_file.h"

namespace tandem::drift {
namespace {

namespace fs = std::filesystem;
using std::string_view_literals::operator""sv;

constexpr std::string_view kParquetMagic = "PAR1";

// Kinds of files that people have in place of records.
struct Kind {
  std::string_view magic;
  const char* advice;
};
constexpr Kind kKinds[] = {
    {"\x1f\x8b"sv, "is compressed with gzip: unpack it first (gunzip), or write Parquet"},
    {"\x28\xb5\x2f\xfd"sv,
     "is compressed with Zstandard: unpack it first (unzstd), or write Parquet"},
    {"BZh"sv, "is compressed with bzip2: unpack it first (bunzip2), or write Parquet"},
    {"PK\x03\x04"sv,
     "is a zip archive, such as torch.save and numpy.savez write: `tandem drift import` says how "
     "to get records out of it"},
    {"\x80"sv, "is a Python pickle: `tandem drift import` says how to get records out of it"},
    {"\xef\xbb\xbf"sv,
     "begins with a byte order mark: write it as UTF-8 without one (in Python encoding=\"utf-8\", "
     "not \"utf-8-sig\")"},
    {"\xff\xfe"sv, "is text in UTF-16: write it as UTF-8"},
    {"\xfe\xff"sv, "is text in UTF-16: write it as UTF-8"},
};

absl::Status DirectoryFault(const std::string& path) {
  if (fs::exists(fs::path(path) / "manifest.json")) {
    return InvalidArgument(path,
                           ": expected a file of format 3 (docs/records.md), found a capture of "
                           "format 1 or 2, a directory: `tandem drift why` reads it as it is");
  }
  return InvalidArgument(path,
                         ": expected a file of format 3 (docs/records.md), found a directory: name "
                         "one file (`tandem drift import --from NAME DIR --out records.jsonl` "
                         "makes one of a directory of other frameworks' files)");
}

// The first bytes of the file, at most `most`, up to a line break.
absl::StatusOr<std::string> FirstBytes(const std::string& path, size_t most) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return absl::ErrnoToStatus(errno, path);
  std::string bytes;
  for (int c = std::fgetc(file); c != EOF && bytes.size() < most; c = std::fgetc(file)) {
    bytes += static_cast<char>(c);
    if (c == '\n' && bytes.find_first_not_of(" \t\r\n") != std::string::npos) break;
  }
  std::fclose(file);
  return bytes;
}

}  // namespace

absl::StatusOr<RecordsForm> FormOf(const std::string& path) {
  std::error_code ignored, error;
  if (fs::is_directory(path, ignored)) return DirectoryFault(path);
  if (!fs::exists(path, error) && !error) {
    return NotFound(path, ": No such file or directory; expected records (docs/records.md)");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, FirstBytes(path, 64));
  if (bytes.starts_with(kParquetMagic)) return RecordsForm::kParquet;
  for (const Kind& kind : kKinds) {
    if (bytes.starts_with(kind.magic)) return InvalidArgument(path, ": ", kind.advice);
  }
  if (bytes.starts_with('[')) {
    return InvalidArgument(path,
                           ": is a JSON array: records are JSON lines, the header first and then "
                           "one object a line (docs/records.md); ",
                           kImportAdvice);
  }
  if (bytes.empty()) {
    return InvalidArgument(path,
                           ": expected a header line and rows (docs/records.md), found an empty "
                           "file: did its writer end early? ",
                           kImportAdvice);
  }
  return RecordsForm::kJsonLines;
}

bool IsRecordsFile(const std::string& path) {
  const absl::StatusOr<RecordsForm> form = FormOf(path);
  if (!form.ok()) return false;
  if (*form == RecordsForm::kParquet) return true;
  constexpr size_t kMostHeader = size_t{16} << 20;
  const absl::StatusOr<std::string> header = FirstBytes(path, kMostHeader);
  if (!header.ok()) return false;
  const size_t first = header->find_first_not_of(" \t\r\n");
  return first != std::string::npos && (*header)[first] == '{' &&
         header->find("\"tandem_capture\"") != std::string::npos;
}

}  // namespace tandem::drift
