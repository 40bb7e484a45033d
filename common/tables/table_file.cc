#include "common/tables/table_file.h"

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/tables/parquet_stream.h"
#include "common/tokenizer/ffi/tandem_table.h"

namespace tandem {
namespace {

struct Ending {
  std::string_view text;
  TableFormat format;
};
constexpr Ending kEndings[] = {
    {".jsonl", TableFormat::kJsonLines}, {".ndjson", TableFormat::kJsonLines},
    {".json", TableFormat::kJson},       {".csv", TableFormat::kCsv},
    {".tsv", TableFormat::kTsv},         {".parquet", TableFormat::kParquet},
    {".arrow", TableFormat::kArrow},     {".feather", TableFormat::kArrow}};

int32_t FormatNumber(TableFormat format) {
  switch (format) {
    case TableFormat::kJsonLines:
      return TANDEM_TABLE_JSON_LINES;
    case TableFormat::kJson:
      return TANDEM_TABLE_JSON;
    case TableFormat::kCsv:
      return TANDEM_TABLE_CSV;
    case TableFormat::kTsv:
      return TANDEM_TABLE_TSV;
    case TableFormat::kParquet:
      return TANDEM_TABLE_PARQUET;
    case TableFormat::kArrow:
      return TANDEM_TABLE_ARROW;
  }
  return TANDEM_TABLE_JSON_LINES;
}

// The text of a result, which is released.
std::string TakeTableText(const TandemResult& result) {
  std::string text(reinterpret_cast<const char*>(result.data), result.size);
  tandem_tokenizer_free_result(result);
  return text;
}

absl::Status TableFault(const std::string& path, TableFormat format, const std::string& text) {
  if (format == TableFormat::kParquet) return ParquetFault(path, text);
  return InvalidArgument(path, ": cannot be read as ", std::string(TableFormatName(format)), ": ",
                         text);
}

}  // namespace

std::string_view TableFormatName(TableFormat format) {
  switch (format) {
    case TableFormat::kJsonLines:
      return "JSON lines";
    case TableFormat::kJson:
      return "JSON";
    case TableFormat::kCsv:
      return "CSV";
    case TableFormat::kTsv:
      return "TSV";
    case TableFormat::kParquet:
      return "Parquet";
    case TableFormat::kArrow:
      return "Arrow";
  }
  return "";
}

std::optional<TableFormat> TableFormatOf(std::string_view name) {
  bool is_compressed = false;
  for (const std::string_view ending : {".gz", ".zst"}) {
    if (!name.ends_with(ending)) continue;
    name.remove_suffix(ending.size());
    is_compressed = true;
    break;
  }
  for (const Ending& ending : kEndings) {
    if (!name.ends_with(ending.text)) continue;
    const bool has_own_compression =
        ending.format == TableFormat::kParquet || ending.format == TableFormat::kArrow;
    if (is_compressed && has_own_compression) return std::nullopt;
    return ending.format;
  }
  return std::nullopt;
}

TableFile::TableFile(TandemTable* handle, std::string path, TableFormat format)
    : handle_(handle), path_(std::move(path)), format_(format) {}

TableFile::~TableFile() { tandem_table_close(handle_); }

absl::StatusOr<std::unique_ptr<TableFile>> TableFile::Open(const std::string& path,
                                                           TableFormat format) {
  // The crates' messages do not tell a file that is missing from one that is damaged.
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return absl::ErrnoToStatus(errno, path);
  std::fclose(file);
  const TandemBytes name = {.data = reinterpret_cast<const uint8_t*>(path.data()),
                            .size = path.size()};
  TandemTable* handle = nullptr;
  const TandemResult result = tandem_table_open(name, FormatNumber(format), &handle);
  const std::string text = TakeTableText(result);
  if (result.status != TANDEM_TOKENIZER_OK) return TableFault(path, format, text);
  return std::unique_ptr<TableFile>(new TableFile(handle, path, format));
}

std::vector<std::string> TableFile::Columns() const {
  const auto names = nlohmann::json::parse(TakeTableText(tandem_table_columns(handle_)), nullptr,
                                           /*allow_exceptions=*/false);
  return names.is_array() ? names.get<std::vector<std::string>>() : std::vector<std::string>();
}

bool TableFile::are_lines() const { return tandem_table_are_lines(handle_) != 0; }

absl::StatusOr<std::string> TableFile::Next() {
  const TandemResult result = tandem_table_next(handle_);
  std::string text = TakeTableText(result);
  if (result.status == TANDEM_TOKENIZER_OK) return text;
  return TableFault(path_, format_, text);
}

}  // namespace tandem
