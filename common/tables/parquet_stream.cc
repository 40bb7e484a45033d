#include "common/tables/parquet_stream.h"

#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/ffi/tandem_parquet.h"

namespace tandem {
namespace {

TandemBytes ParquetBytes(const std::string& text) {
  return {.data = reinterpret_cast<const uint8_t*>(text.data()), .size = text.size()};
}

// The text of a result, which is released.
std::string TakeParquetText(const TandemResult& result) {
  std::string text(reinterpret_cast<const char*>(result.data), result.size);
  tandem_tokenizer_free_result(result);
  return text;
}

}  // namespace

// The crate is built without some codecs, and names the one that a page would need.
absl::Status ParquetFault(const std::string& path, const std::string& text) {
  constexpr std::string_view kNoCodec = "Disabled feature at compile time: ";
  const size_t at = text.find(kNoCodec);
  if (at == std::string::npos) {
    return InvalidArgument(path, ": cannot be read as Parquet: ", text);
  }
  return InvalidArgument(
      path,
      ": expected Parquet without compression or with Snappy, gzip or Zstandard, found pages ",
      "compressed with ", text.substr(at + kNoCodec.size()),
      "; rewrite it: python -c \"import sys, ",
      "pyarrow.parquet as p; p.write_table(p.read_table(sys.argv[1]), sys.argv[2], ",
      "compression='zstd')\" IN.parquet OUT.parquet");
}

ParquetStream::ParquetStream(TandemParquet* handle, std::string path)
    : handle_(handle), path_(std::move(path)) {}

ParquetStream::~ParquetStream() { tandem_parquet_close(handle_); }

absl::StatusOr<std::unique_ptr<ParquetStream>> ParquetStream::Open(const std::string& path) {
  // The crate's messages do not tell a file that is missing from one that is damaged.
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return absl::ErrnoToStatus(errno, path);
  std::fclose(file);
  TandemParquet* handle = nullptr;
  const TandemResult result = tandem_parquet_open(ParquetBytes(path), &handle);
  const std::string text = TakeParquetText(result);
  if (result.status != TANDEM_TOKENIZER_OK) {
    return ParquetFault(path, text);
  }
  return std::unique_ptr<ParquetStream>(new ParquetStream(handle, path));
}

std::optional<std::string> ParquetStream::Metadata(const std::string& key) const {
  const TandemResult result = tandem_parquet_metadata(handle_, ParquetBytes(key));
  std::string text = TakeParquetText(result);
  if (result.status != TANDEM_TOKENIZER_OK) return std::nullopt;
  return text;
}

int64_t ParquetStream::num_rows() const { return tandem_parquet_num_rows(handle_); }

absl::StatusOr<std::string> ParquetStream::Next(int64_t max_rows) {
  const TandemResult result = tandem_parquet_next(handle_, max_rows);
  std::string text = TakeParquetText(result);
  if (result.status == TANDEM_TOKENIZER_OK) return text;
  return ParquetFault(path_, text);
}

}  // namespace tandem
