// Writes files so that they appear whole or not at all. All durable state is written through this
// file, so that tests can inject ENOSPC, short writes and failing fsyncs in one place (environment
// TANDEM_FAIL_WRITE="substring-of-path:errno-name:after-bytes", in debug and release builds). The
// errno names are ENOSPC, EDQUOT, EROFS, EACCES, EINVAL and EIO. "fsync" in place of the bytes
// makes fsync fail; "exchange" makes the exchange of two directories fail, as on file systems that
// have no such operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// Errors of all functions here: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (disk full,
// quota), UNAVAILABLE (any other errno). The message has the path and strerror's text.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes to PATH.tmp, fsyncs it, renames it and fsyncs the directory. On any failure the existing
// file stays as it is.
absl::Status WriteFileAtomically(const std::string& path, std::string_view contents);

// Writes a file that only its owner can read, from its first byte on, for keys and secrets: writes
// PATH.tmp with mode 0600, fsyncs it and renames it. On failure the existing file stays.
//   UNAVAILABLE  it cannot be written (the message has path and reason)
absl::Status WritePrivateFile(const std::string& path, std::string_view contents);

// Calls `fill` to write files into the empty directory PATH.tmp, fsyncs them and moves the
// directory to PATH, replacing an existing one. After an error, of this function or of `fill`, PATH
// is as before and PATH.tmp is gone; if only the fsync after the rename failed, PATH is the
// complete new directory.
//
// At every moment, and after a crash, readers find one of the two directories, complete: the two
// names are exchanged in one step (renameat2 with RENAME_EXCHANGE, available on ext4, xfs, btrfs
// and tmpfs). On file systems without that step (NFS, Lustre, many FUSE file systems), the existing
// directory is renamed to PATH.tmp-before for a moment. A reader may find no PATH during that
// moment; if a crash falls into it, RecoverDirectories restores the name. Only one writer per PATH
// at a time.
absl::Status WriteDirectoryAtomically(
    const std::string& path, absl::FunctionRef<absl::Status(const std::string& directory)> fill);

// Repairs what a crash interrupted in the directories below `parent`: a PATH.tmp-before is renamed
// to PATH if there is no PATH, and removed otherwise. A process that owns `parent` calls it before
// it first reads there, while no writer is active. A `parent` that does not exist needs no repair.
absl::Status RecoverDirectories(const std::string& parent);

absl::Status MakeDirectories(const std::string& path);  // like mkdir -p

// An append-only file of JSON lines. Each Append is one write(2), which survives the end of this
// process. Thread-compatible.
class AppendFile {
 public:
  static absl::StatusOr<std::unique_ptr<AppendFile>> Open(const std::string& path);
  ~AppendFile();
  absl::Status Append(std::string_view bytes);
  absl::Status Sync();

 private:
  AppendFile(int fd, std::string path);
  const int fd_;
  const std::string path_;
  int64_t written_ = 0;
};

// A sequential writer for large files. Nothing appears at `path` before Commit.
class AtomicFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicFileWriter>> Create(const std::string& path);
  ~AtomicFileWriter();  // removes the temporary file if Commit was not called
  absl::Status Write(std::span<const std::byte> bytes);
  absl::Status Commit();  // fsync, rename, fsync of the directory

 private:
  AtomicFileWriter(int fd, std::string path);
  int fd_;
  const std::string path_;
  int64_t written_ = 0;
};

// A file mapped read-only.
class MappedFile {
 public:
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::string& path);
  ~MappedFile();
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::span<const std::byte> bytes, std::string path);
  const std::span<const std::byte> bytes_;
  const std::string path_;
};

// DirectoryLock: lets one process at a time write to a directory. The kernel releases the lock when
// the process ends, in whatever way.
class DirectoryLock {
 public:
  // Locks an existing directory, retrying for `patience_seconds`. On file systems without such
  // locks (some network file systems) it succeeds at once and excludes nobody.
  //   ALREADY_EXISTS     another process, or this one, holds the lock
  //   PERMISSION_DENIED  the directory cannot be opened
  static absl::StatusOr<std::unique_ptr<DirectoryLock>> Take(const std::string& path,
                                                             double patience_seconds);
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace tandem
