// Any bytes as a table of each format: refused, or rows of which those of Parquet, Arrow and CSV are
// JSON.
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "common/base/check.h"
#include "common/tables/row_reader.h"
#include "tests/support/temp_dir.h"

namespace {

constexpr const char* kNames[] = {"x.parquet", "x.arrow", "x.csv", "x.tsv", "x.json", "x.jsonl"};

void ReadAll(const std::string& path, bool states_json) {
  const auto reader = tandem::RowReader::Open(path);
  if (!reader.ok()) return;
  while (true) {
    const auto row = (*reader)->Next();
    if (!row.ok() || !row->has_value()) return;
    if (states_json) TANDEM_CHECK(nlohmann::json::accept((*row)->json));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tandem::testing::TempDir directory;
  for (const std::string name : kNames) {
    const std::string path = directory / name;
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    ReadAll(path, /*states_json=*/name != "x.jsonl" && name != "x.json");
  }
  return 0;
}
