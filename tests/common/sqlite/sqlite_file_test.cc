#include "common/sqlite/sqlite_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/files/file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using testing::FailsWith;
using testing::IsOk;

constexpr char kCreate[] = "CREATE TABLE t (i INTEGER, r REAL, s TEXT)";

TEST(SqliteFile, GivesValuesBackInTheirTypes) {
  const testing::TempDir directory;
  auto file = SqliteFile::Open(directory / "f", 3, kCreate);
  ASSERT_THAT(file, IsOk());
  ASSERT_THAT((*file)->Run("INSERT INTO t VALUES (?1, ?2, ?3)", {int64_t{7}, 0.1, "a\"b"}), IsOk());
  ASSERT_THAT((*file)->Run("INSERT INTO t VALUES (?1, ?2, ?3)", {{}, {}, {}}), IsOk());
  const auto reader = SqliteFile::OpenToRead(directory / "f", 3);
  ASSERT_THAT(reader, IsOk());
  const auto rows = (*reader)->Run("SELECT * FROM t WHERE i = ?1 OR i IS NULL", {int64_t{7}});
  ASSERT_THAT(rows, IsOk());
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[0], (SqlRow{int64_t{7}, 0.1, "a\"b"}));
  EXPECT_EQ((*rows)[1], SqlRow(3));
  EXPECT_THAT((*reader)->Run("INSERT INTO t VALUES (1, 2, 'x')").status(),
              FailsWith(absl::StatusCode::kUnavailable, "readonly"));
}

TEST(SqliteFile, AnotherFormatOrAnotherFileIsRefused) {
  const testing::TempDir directory;
  ASSERT_THAT(SqliteFile::Open(directory / "f", 1, kCreate), IsOk());
  EXPECT_THAT(
      SqliteFile::Open(directory / "f", 2, kCreate),
      FailsWith(absl::StatusCode::kInvalidArgument, "has format 1, and this version reads 2"));
  ASSERT_THAT(WriteFileAtomically(directory / "text", std::string(2000, 'x')), IsOk());
  EXPECT_THAT(SqliteFile::OpenToRead(directory / "text", 1),
              FailsWith(absl::StatusCode::kInvalidArgument, "not a database"));
  EXPECT_THAT(SqliteFile::OpenToRead(directory / "none", 1),
              FailsWith(absl::StatusCode::kNotFound, "is not there"));
}

TEST(SqliteFile, AStatementThatIsWrongGivesSqlitesReason) {
  const testing::TempDir directory;
  auto file = SqliteFile::Open(directory / "f", 1, kCreate);
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->Run("SELECT x FROM t").status(),
              FailsWith(absl::StatusCode::kUnavailable, "no such column: x"));
}

}  // namespace
}  // namespace tandem
