#include "common/base/file_system.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace tandem {
namespace {

using testing::FailsWith;
using testing::IsOk;

// Sets TANDEM_FAIL_WRITE for one scope.
class FailWrites {
 public:
  explicit FailWrites(const std::string& rule) { ::setenv("TANDEM_FAIL_WRITE", rule.c_str(), 1); }
  ~FailWrites() { ::unsetenv("TANDEM_FAIL_WRITE"); }
};

std::string Contents(const std::string& path) {
  const absl::StatusOr<std::string> contents = ReadFile(path);
  EXPECT_THAT(contents, IsOk());
  return contents.value_or("");
}

TEST(FileSystemTest, AtomicWriteReplacesTheWholeFileAndLeavesNoTemporary) {
  testing::TempDir dir;
  ASSERT_THAT(WriteFileAtomically(dir / "f", "first, longer"), IsOk());
  ASSERT_THAT(WriteFileAtomically(dir / "f", "second"), IsOk());
  EXPECT_EQ(Contents(dir / "f"), "second");
  EXPECT_FALSE(std::filesystem::exists(dir / "f.tmp"));
}

TEST(FileSystemTest, AFullDiskIsResourceExhaustedAndKeepsTheFileThatWasThere) {
  testing::TempDir dir;
  ASSERT_THAT(WriteFileAtomically(dir / "weights", "before"), IsOk());
  {
    FailWrites full("weights:ENOSPC:3");
    EXPECT_THAT(WriteFileAtomically(dir / "weights", "after it"),
                FailsWith(absl::StatusCode::kResourceExhausted, "No space left"));
    EXPECT_THAT(WriteFileAtomically(dir / "other", "not concerned"), IsOk());
  }
  EXPECT_EQ(Contents(dir / "weights"), "before");
  EXPECT_FALSE(std::filesystem::exists(dir / "weights.tmp"));
}

TEST(FileSystemTest, AFailingFsyncIsReportedAndKeepsTheFileThatWasThere) {
  testing::TempDir dir;
  ASSERT_THAT(WriteFileAtomically(dir / "f", "before"), IsOk());
  FailWrites broken("f:EIO:fsync");
  EXPECT_THAT(WriteFileAtomically(dir / "f", "after"),
              FailsWith(absl::StatusCode::kUnavailable, "fsync failed"));
  EXPECT_EQ(Contents(dir / "f"), "before");
}

TEST(FileSystemTest, AWriterThatNeverCommitsLeavesNothing) {
  testing::TempDir dir;
  {
    auto writer = AtomicFileWriter::Create(dir / "f");
    ASSERT_THAT(writer, IsOk());
    ASSERT_THAT((*writer)->Write(std::as_bytes(std::span("abc", 3))), IsOk());
    EXPECT_FALSE(std::filesystem::exists(dir / "f"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(FileSystemTest, AWriterRefusesWorkAfterItsCommit) {
  testing::TempDir dir;
  auto writer = AtomicFileWriter::Create(dir / "f");
  ASSERT_THAT(writer, IsOk());
  ASSERT_THAT((*writer)->Commit(), IsOk());
  EXPECT_THAT((*writer)->Commit(), FailsWith(absl::StatusCode::kFailedPrecondition, "committed"));
}

TEST(FileSystemTest, AppendsAddLinesAcrossOpenings) {
  testing::TempDir dir;
  for (const char* line : {"{\"a\":1}\n", "{\"a\":2}\n"}) {
    auto file = AppendFile::Open(dir / "metrics.jsonl");
    ASSERT_THAT(file, IsOk());
    ASSERT_THAT((*file)->Append(line), IsOk());
    ASSERT_THAT((*file)->Sync(), IsOk());
  }
  EXPECT_EQ(Contents(dir / "metrics.jsonl"), "{\"a\":1}\n{\"a\":2}\n");
}

TEST(FileSystemTest, AppendStopsAtAFullDisk) {
  testing::TempDir dir;
  FailWrites full("metrics:ENOSPC:4");
  auto file = AppendFile::Open(dir / "metrics.jsonl");
  ASSERT_THAT(file, IsOk());
  EXPECT_THAT((*file)->Append("123"), IsOk());
  EXPECT_THAT((*file)->Append("456"), FailsWith(absl::StatusCode::kResourceExhausted, "metrics"));
}

TEST(FileSystemTest, MissingFilesAreNotFoundByName) {
  testing::TempDir dir;
  EXPECT_THAT(ReadFile(dir / "none"), FailsWith(absl::StatusCode::kNotFound, "none"));
  EXPECT_THAT(MappedFile::Open(dir / "none"), FailsWith(absl::StatusCode::kNotFound, "none"));
  EXPECT_THAT(WriteFileAtomically(dir / "no/where", ""),
              FailsWith(absl::StatusCode::kNotFound, "no/where"));
}

TEST(FileSystemTest, MapsAFileAnEmptyFileAndNoDirectory) {
  testing::TempDir dir;
  ASSERT_THAT(WriteFileAtomically(dir / "f", "xyz"), IsOk());
  ASSERT_THAT(WriteFileAtomically(dir / "empty", ""), IsOk());
  const auto mapped = MappedFile::Open(dir / "f");
  ASSERT_THAT(mapped, IsOk());
  ASSERT_EQ((*mapped)->bytes().size(), 3u);
  EXPECT_EQ((*mapped)->bytes()[2], std::byte{'z'});
  const auto empty = MappedFile::Open(dir / "empty");
  ASSERT_THAT(empty, IsOk());
  EXPECT_TRUE((*empty)->bytes().empty());
  EXPECT_THAT(MappedFile::Open(dir.path()),
              FailsWith(absl::StatusCode::kUnavailable, "Is a directory"));
}

TEST(FileSystemTest, MakesDirectoriesOnceAndAgain) {
  testing::TempDir dir;
  EXPECT_THAT(MakeDirectories(dir / "a/b/c"), IsOk());
  EXPECT_THAT(MakeDirectories(dir / "a/b/c"), IsOk());
  EXPECT_TRUE(std::filesystem::is_directory(dir / "a/b/c"));
  ASSERT_THAT(WriteFileAtomically(dir / "file", "x"), IsOk());
  EXPECT_FALSE(MakeDirectories(dir / "file").ok());
}

}  // namespace
}  // namespace tandem
