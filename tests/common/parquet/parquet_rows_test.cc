#include "common/parquet/parquet_rows.h"

#include <gtest/gtest.h>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;
using ::tandem::testing::TempDir;

// tests/parity/preference_data_parity_test.py reads files that pyarrow wrote.

TEST(ParquetRows, AFileOfAnotherFormatIsNamed) {
  TempDir dir;
  for (const char* contents :
       {"", "{\"prompt\": 1}\n", "PAR1....PAR1", "PAR1\xff\xff\xff\xffPAR1"}) {
    ASSERT_THAT(WriteFileAtomically(dir / "x.parquet", contents), IsOk());
    EXPECT_THAT(ReadParquetAsJsonLines(dir / "x.parquet"),
                FailsWith(absl::StatusCode::kInvalidArgument,
                          dir / "x.parquet cannot be read as Parquet: "));
  }
}

TEST(ParquetRows, AMissingFileIsNotFound) {
  TempDir dir;
  EXPECT_THAT(ReadParquetAsJsonLines(dir / "none.parquet"),
              FailsWith(absl::StatusCode::kNotFound, "none.parquet"));
}

}  // namespace
}  // namespace tandem
