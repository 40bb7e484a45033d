// Any bytes as a Parquet file: refused, or its rows as JSON lines.
#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "common/base/check.h"
#include "common/parquet/parquet_rows.h"
#include "tests/support/temp_dir.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::testing::TempDir directory;
  const std::string path = directory / "x.parquet";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  const auto lines = tandem::ReadParquetAsJsonLines(path);
  if (!lines.ok()) return 0;
  std::istringstream stream(*lines);
  for (std::string line; std::getline(stream, line);) {
    TANDEM_CHECK(nlohmann::json::accept(line));
  }
  return 0;
}
