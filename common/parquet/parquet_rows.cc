#include "common/parquet/parquet_rows.h"

#include "common/base/status_macros.h"
#include "common/files/file_system.h"
#include "common/tokenizer/ffi/tandem_parquet.h"

namespace tandem {

absl::StatusOr<std::string> ReadParquetAsJsonLines(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string file, ReadFile(path));
  const TandemResult result = tandem_parquet_json_lines(
      {.data = reinterpret_cast<const uint8_t*>(file.data()), .size = file.size()});
  std::string text(reinterpret_cast<const char*>(result.data), result.size);
  tandem_tokenizer_free_result(result);
  if (result.status == TANDEM_TOKENIZER_OK) return text;
  // The crate panics on some damaged files, which are bad input all the same.
  return InvalidArgument(path, " cannot be read as Parquet: ", text);
}

}  // namespace tandem
