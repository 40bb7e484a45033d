// Files as the project writes them: whole or not at all. The one place that opens files for writing
// durable state, so that tests can inject ENOSPC, short writes and failing fsyncs at one seam
// (environment TANDEM_FAIL_WRITE="substring-of-path:errno-name:after-bytes", debug and release;
// errno names are ENOSPC, EDQUOT, EROFS, EACCES, EINVAL and EIO; "fsync" in place of the bytes
// makes fsync fail, "exchange" the exchange of two directories, as on file systems that have none).
#ifndef TANDEM_COMMON_FILES_FILE_SYSTEM_H_
#define TANDEM_COMMON_FILES_FILE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem {

// Errors of this file: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED (disk full, quota),
// UNAVAILABLE (other errno); the message has path and strerror.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Writes to PATH.tmp, fsyncs, renames, fsyncs the directory. RESOURCE_EXHAUSTED on ENOSPC; the file
// that was there stays on any failure.
absl::Status WriteFileAtomically(const std::string& path, std::string_view contents);

// Has `fill` write files into the empty directory PATH.tmp, fsyncs it and puts it at PATH, in place
// of what was there. On an error, its own or that of `fill`, PATH is as before and PATH.tmp is
// gone; where only the fsync after the rename failed, PATH is the whole new directory.
//
// Readers, and whoever comes after a crash, find one of the two directories, whole: the two names
// are exchanged in one step (renameat2 with RENAME_EXCHANGE, as on ext4, xfs, btrfs and tmpfs).
// Where the file system has no such step (NFS, Lustre, many FUSE file systems), the directory that
// was there is called PATH.tmp-before for a moment. A reader may then find no PATH in this moment,
// and after a crash in it RecoverDirectories gives the name back. One writer per PATH at a time.
absl::Status WriteDirectoryAtomically(
    const std::string& path, absl::FunctionRef<absl::Status(const std::string& directory)> fill);

// Undoes for the directories in `parent` what a crash interrupted: a PATH.tmp-before becomes PATH
// again where there is no PATH, and is removed where there is one. Call it before the first reading
// in a process that owns `parent`, while no writer is at work there. A `parent` that is not there
// has nothing to recover.
absl::Status RecoverDirectories(const std::string& parent);

absl::Status MakeDirectories(const std::string& path);  // like mkdir -p

// An append-only file (JSON lines): each Append is one write(2), flushed by the kernel.
// Thread-compatible.
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

// A sequential writer for large files; nothing appears at `path` before Commit.
class AtomicFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicFileWriter>> Create(const std::string& path);
  ~AtomicFileWriter();  // without Commit: removes the temporary file
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

}  // namespace tandem

#endif  // TANDEM_COMMON_FILES_FILE_SYSTEM_H_
