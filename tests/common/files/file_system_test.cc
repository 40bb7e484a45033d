#include "common/files/file_system.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
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
  EXPECT_THAT(MappedFile::Open(dir.path()), FailsWith(absl::StatusCode::kInvalidArgument,
                                                      "is a directory, where a file is wanted"));
}

// The contents of the directory `path`, or empty if it does not exist or is not whole. A whole one
// has the same text in both of its files.
std::string WholeContents(const std::string& path) {
  const auto first = ReadFile(path + "/first"), second = ReadFile(path + "/second");
  return first.ok() && second.ok() && *first == *second ? *first : "";
}

absl::Status WriteBoth(const std::string& path, const std::string& text) {
  return WriteDirectoryAtomically(path, [&](const std::string& directory) {
    const absl::Status first = WriteFileAtomically(directory + "/first", text);
    return first.ok() ? WriteFileAtomically(directory + "/second", text) : first;
  });
}

// Lets another process replace "before" by "after" at `path`, and kills it before its `point`-th
// change of the disk. Returns true if it was killed, and false if it had finished.
bool ReplaceAndDieAt(int64_t point, const std::string& path, const char* fail_write) {
  const pid_t writer = fork();
  if (writer == 0) {
    ::setenv("TANDEM_FAIL_POINT", absl::StrCat("disk: :", point).c_str(), 1);
    if (fail_write != nullptr) ::setenv("TANDEM_FAIL_WRITE", fail_write, 1);
    _exit(WriteBoth(path, "after").ok() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(writer, &status, 0), writer);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
  return WIFSIGNALED(status);
}

// What a reader finds between two changes is what it finds after a kill before the second one.
TEST(FileSystemTest, AReaderFindsAWholeDirectoryAtEveryPointOfItsReplacement) {
  int64_t num_points = 0, num_before = 0;
  for (bool killed = true; killed; ++num_points) {
    ASSERT_LT(num_points, 100) << "the writer never comes to its end";
    testing::TempDir dir;
    ASSERT_THAT(WriteBoth(dir / "d", "before"), IsOk());
    killed = ReplaceAndDieAt(num_points + 1, dir / "d", nullptr);
    const std::string found = WholeContents(dir / "d");
    EXPECT_TRUE(found == "after" || (killed && found == "before")) << "at point " << num_points + 1;
    num_before += found == "before";
    ASSERT_THAT(WriteBoth(dir / "d", "next"), IsOk());
    EXPECT_EQ(WholeContents(dir / "d"), "next");
    EXPECT_FALSE(std::filesystem::exists(dir / "d.tmp"));
  }
  // Create, write, fsync, rename and the fsync of the directory for each of two files; then the
  // fsync of the new directory, the exchange, the fsync of the parent, and the removal. The first
  // twelve come before the exchange.
  EXPECT_EQ(num_points, 14 + 1);
  EXPECT_EQ(num_before, 12);
}

// On a file system that cannot exchange names, a crash may leave no directory at the path, and
// another process restores the previous one.
TEST(FileSystemTest, WithoutAnExchangeTheDirectoryBeforeIsRecoveredAfterACrash) {
  int64_t num_points = 0, num_missing = 0;
  for (bool killed = true; killed; ++num_points) {
    ASSERT_LT(num_points, 100) << "the writer never comes to its end";
    testing::TempDir dir;
    ASSERT_THAT(WriteBoth(dir / "d", "before"), IsOk());
    killed = ReplaceAndDieAt(num_points + 1, dir / "d", "d:EINVAL:exchange");
    num_missing += !std::filesystem::exists(dir / "d");
    ASSERT_THAT(RecoverDirectories(dir.path()), IsOk());
    const std::string found = WholeContents(dir / "d");
    EXPECT_TRUE(found == "after" || (killed && found == "before")) << "at point " << num_points + 1;
    EXPECT_FALSE(std::filesystem::exists(dir / "d.tmp-before"));
  }
  EXPECT_EQ(num_points, 16 + 1) << "two renames more than with an exchange";
  EXPECT_EQ(num_missing, 1) << "no longer than between the two renames";
}

TEST(FileSystemTest, TheNextWriterRecoversWhatTheOneBeforeItLeftAndKeepsItIfItFails) {
  testing::TempDir dir;
  ASSERT_THAT(WriteBoth(dir / "d", "before"), IsOk());
  ASSERT_TRUE(ReplaceAndDieAt(14, dir / "d", "d:EINVAL:exchange"));
  ASSERT_FALSE(std::filesystem::exists(dir / "d")) << "died between the two renames";
  {
    FailWrites full("d.tmp/second:ENOSPC:0");
    EXPECT_THAT(WriteBoth(dir / "d", "next"),
                FailsWith(absl::StatusCode::kResourceExhausted, "second"));
  }
  EXPECT_EQ(WholeContents(dir / "d"), "before");
  EXPECT_THAT(RecoverDirectories(dir / "none"), IsOk());
}

TEST(FileSystemTest, AnExchangeThatFailsForAnotherReasonKeepsTheDirectoryThatWasThere) {
  testing::TempDir dir;
  ASSERT_THAT(WriteBoth(dir / "d", "before"), IsOk());
  FailWrites broken("d:EIO:exchange");
  EXPECT_THAT(WriteBoth(dir / "d", "after"),
              FailsWith(absl::StatusCode::kUnavailable, "exchange failed"));
  EXPECT_EQ(WholeContents(dir / "d"), "before");
  EXPECT_FALSE(std::filesystem::exists(dir / "d.tmp"));
}

TEST(FileSystemTest, ADirectoryIsWrittenBesideItsPlaceWithASlashAtItsEndToo) {
  testing::TempDir dir;
  ASSERT_THAT(WriteBoth(dir / "d/", "first"), IsOk());
  ASSERT_THAT(WriteBoth(dir / "d/", "second"), IsOk());
  EXPECT_EQ(WholeContents(dir / "d"), "second");
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
