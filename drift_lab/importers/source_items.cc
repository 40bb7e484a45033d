#include "drift_lab/importers/source_items.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <span>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/foreign_json.h"
#include "common/base/json.h"
#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/tables/parquet_stream.h"
#include "drift_lab/importers/tensor_rows.h"
#include "drift_lab/records/records_file.h"
#include "nlohmann/json.hpp"

namespace tandem::drift {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Deeper than anything that frameworks write; nlohmann's parser is recursive.
constexpr int kMaxDepth = 64;
constexpr int64_t kRowsAtOnce = 256;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// "step 2" before "step 10".
bool NaturalLess(const std::string& a, const std::string& b) {
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size()) {
    if (IsDigit(a[i]) && IsDigit(b[j])) {
      const size_t end_a = std::min(a.find_first_not_of("0123456789", i), a.size());
      const size_t end_b = std::min(b.find_first_not_of("0123456789", j), b.size());
      const std::string number_a = a.substr(i, end_a - i), number_b = b.substr(j, end_b - j);
      const auto key = [](const std::string& n) {
        const size_t first = std::min(n.find_first_not_of('0'), n.size() - 1);
        return std::pair(n.size() - first, n.substr(first));
      };
      if (key(number_a) != key(number_b)) return key(number_a) < key(number_b);
      i = end_a;
      j = end_b;
    } else if (a[i] != b[j]) {
      return a[i] < b[j];
    } else {
      ++i;
      ++j;
    }
  }
  return a.size() - i < b.size() - j;
}

bool IsPattern(const std::string& path) { return path.find_first_of("*?") != std::string::npos; }

std::regex PatternRegex(std::string_view pattern) {
  std::string text;
  for (const char c : pattern) {
    if (c == '*') {
      text += "[^/]*";
    } else if (c == '?') {
      text += "[^/]";
    } else {
      if (std::string_view("\\^$.|+()[]{}").find(c) != std::string_view::npos) text += '\\';
      text += c;
    }
  }
  return std::regex(text);
}

// Files below `root` that no hidden directory holds.
std::vector<std::string> FilesBelow(const fs::path& root) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator at(root, error);
  for (; !error && at != fs::recursive_directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with('.')) {
      at.disable_recursion_pending();
    } else if (at->is_regular_file(error)) {
      found.push_back(at->path().string());
    }
  }
  std::ranges::sort(found, NaturalLess);
  return found;
}

std::vector<std::string> FilesMatching(const std::string& pattern) {
  const size_t first = pattern.find_first_of("*?");
  const size_t slash = pattern.rfind('/', first);
  const std::string root = slash == std::string::npos ? "." : pattern.substr(0, slash + 1);
  const std::regex regex =
      PatternRegex(slash == std::string::npos ? absl::StrCat("./", pattern) : pattern);
  std::vector<std::string> found = FilesBelow(root);
  std::erase_if(found, [&](const std::string& path) { return !std::regex_match(path, regex); });
  return found;
}

absl::StatusOr<json> Parsed(std::string_view text) {
  if (NestsDeeperThan(text, kMaxDepth)) {
    return InvalidArgument("lists and objects nest deeper than ", kMaxDepth);
  }
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_discarded()) return value;
  // Python writes NaN and Infinity, which JSON does not have.
  value = json::parse(TextForNonFinite(text), nullptr, /*allow_exceptions=*/false);
  if (!value.is_discarded()) return value;
  return InvalidArgument(JsonFault(text));
}

absl::Status AtPlace(const absl::Status& status, const std::string& path, std::string_view place) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(path, " ", std::string(place), ": ",
                                                  std::string(status.message())));
}

// The item, or the elements of a list.
absl::Status TakeElements(const json& value, const std::string& path, const std::string& place,
                          TakeItem take) {
  if (!value.is_array()) return AtPlace(take(value, place), path, place);
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string element = absl::StrCat(place, place.empty() ? "" : " ", "element ", i);
    TANDEM_RETURN_IF_ERROR(AtPlace(take(value[i], element), path, element));
  }
  return absl::OkStatus();
}

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// One JSON value over many lines.
absl::Status TakeDocument(const std::string& path, TakeItem take) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const absl::StatusOr<json> value = Parsed(text);
  if (!value.ok()) return InvalidArgument(path, ": ", value.status().message());
  return TakeElements(*value, path, "", take);
}

// `number` is that of the last line that was taken.
absl::Status TakeLines(std::istream& lines, const std::string& path, std::string_view unit,
                       int64_t& number, TakeItem take) {
  std::string line;
  while (std::getline(lines, line)) {
    ++number;
    if (IsBlank(line)) continue;
    const std::string place = absl::StrCat(std::string(unit), " ", number);
    const absl::StatusOr<json> value = Parsed(line);
    if (!value.ok()) return AtPlace(value.status(), path, place);
    TANDEM_RETURN_IF_ERROR(TakeElements(*value, path, place, take));
  }
  return absl::OkStatus();
}

absl::Status TakeJson(const std::string& path, TakeItem take) {
  std::ifstream file(path);
  std::string first;
  while (std::getline(file, first) && IsBlank(first)) {
  }
  const bool is_lines = Parsed(first).ok();
  file.close();
  if (!is_lines) {
    // A document whose first line is no value, or lines of which the first is wrong: the document's
    // reader says where.
    std::ifstream again(path);
    std::string second;
    const bool looks_like_lines =
        std::getline(again, second) && std::getline(again, second) && Parsed(second).ok();
    if (!looks_like_lines) return TakeDocument(path, take);
  }
  std::ifstream again(path);
  int64_t line = 0;
  return TakeLines(again, path, "line", line, take);
}

absl::Status TakeParquet(const std::string& path, TakeItem take) {
  TANDEM_ASSIGN_OR_RETURN(const auto stream, ParquetStream::Open(path));
  int64_t row = 0;
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::string rows, stream->Next(kRowsAtOnce));
    if (rows.empty()) return absl::OkStatus();
    std::istringstream lines(rows);
    TANDEM_RETURN_IF_ERROR(TakeLines(lines, path, "row", row, take));
  }
}

bool IsSafetensors(std::span<const std::byte> bytes) {
  return bytes.size() > 9 && bytes[8] == std::byte{'{'} && bytes[7] == std::byte{0};
}

}  // namespace

std::optional<int64_t> StepInName(std::string_view path) {
  static const std::regex kStep("(?:^|[^a-zA-Z])(?:step|rollout)[_-]?([0-9]{1,15})");
  static const std::regex kNumber("^([0-9]{1,15})$");
  const fs::path whole{std::string(path)};
  const std::string stem = whole.stem().string();
  const std::string directory = whole.parent_path().filename().string();
  std::smatch match;
  int64_t step = 0;
  if ((std::regex_search(stem, match, kStep) || std::regex_search(directory, match, kStep) ||
       std::regex_search(stem, match, kNumber)) &&
      absl::SimpleAtoi(match[1].str(), &step)) {
    return step;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<SourceFile>> SourceFiles(const std::vector<std::string>& paths) {
  std::vector<SourceFile> files;
  for (const std::string& path : paths) {
    std::error_code error;
    std::vector<std::string> found;
    const bool is_directory = fs::is_directory(path, error);
    if (is_directory) {
      found = FilesBelow(path);
      if (found.empty()) return NotFound(path, ": a directory without files");
    } else if (fs::exists(path, error)) {
      found = {path};
    } else if (IsPattern(path)) {
      found = FilesMatching(path);
      if (found.empty()) return NotFound(path, ": no file matches");
    } else {
      return NotFound(path, ": no such file or directory");
    }
    for (std::string& file : found) {
      const std::optional<int64_t> step = StepInName(file);
      files.push_back({std::move(file), step, /*is_named=*/!is_directory});
    }
  }
  return files;
}

absl::StatusOr<SourceKind> KindOfFile(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (IsBlank(text.substr(0, 4096))) return SourceKind::kEmpty;
  // torch.save writes a zip archive, pickle.dump a protocol byte and number.
  if (text.starts_with("PK\x03\x04") || (text[0] == '\x80' && text.size() > 1 && text[1] <= 5)) {
    return SourceKind::kPickle;
  }
  if (text.starts_with("\x1f\x8b") || text.starts_with("\x28\xb5\x2f\xfd")) {
    return InvalidArgument(path, ": a compressed file; gunzip or unzstd it first");
  }
  if (text.starts_with("PAR1")) {
    TANDEM_ASSIGN_OR_RETURN(const auto stream, ParquetStream::Open(path));
    return stream->Metadata("tandem_capture") ? SourceKind::kRecords : SourceKind::kParquet;
  }
  if (IsRecordsFile(path)) return SourceKind::kRecords;
  if (IsSafetensors(bytes)) return SourceKind::kSafetensors;
  const char first = text[text.find_first_not_of(" \t\r\n")];
  if (first == '{' || first == '[') return SourceKind::kJson;
  return SourceKind::kOther;
}

absl::Status ForEachItem(const std::string& path, SourceKind kind, TakeItem take) {
  if (kind == SourceKind::kParquet) return TakeParquet(path, take);
  if (kind == SourceKind::kSafetensors) {
    TANDEM_ASSIGN_OR_RETURN(const TensorRows rows, TensorRows::Open(path));
    for (int64_t row = 0; row < rows.num_rows(); ++row) {
      const std::string place = absl::StrCat("row ", row + 1);
      TANDEM_RETURN_IF_ERROR(AtPlace(take(rows.Row(row), place), path, place));
    }
    return absl::OkStatus();
  }
  return TakeJson(path, take);
}

}  // namespace tandem::drift
