#include "common/files/file_system.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/clock.h"
#include "common/base/fail_point.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

absl::Status ErrnoStatus(int error, const char* action, const std::string& path) {
  const std::string message = absl::StrCat(path, ": ", action, " failed: ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return NotFound(message);
    case EISDIR:
      return InvalidArgument(path, " is a directory, where a file is wanted");
    case EACCES:
    case EPERM:
    case EROFS:
      return PermissionDenied(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhausted(message, "; free space and try again");
    default:
      return Unavailable(message);
  }
}

// The failure that TANDEM_FAIL_WRITE requests for one path. It is read at each call, so that a test
// can change it.
struct InjectedFailure {
  int error = 0;            // 0: none
  int64_t after_bytes = 0;  // bytes of the file that are still written
  bool on_sync = false;     // fsync fails instead of a write
  bool on_exchange = false;
};

InjectedFailure InjectedFailureFor(const std::string& path) {
  const char* text = std::getenv("TANDEM_FAIL_WRITE");
  if (text == nullptr || *text == '\0') return {};
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() != 3 || path.find(parts[0]) == std::string::npos) return {};
  InjectedFailure failure;
  failure.error = parts[1] == "ENOSPC"   ? ENOSPC
                  : parts[1] == "EDQUOT" ? EDQUOT
                  : parts[1] == "EROFS"  ? EROFS
                  : parts[1] == "EACCES" ? EACCES
                  : parts[1] == "EINVAL" ? EINVAL
                                         : EIO;
  if (parts[2] == "fsync") {
    failure.on_sync = true;
  } else if (parts[2] == "exchange") {
    failure.on_exchange = true;
  } else if (!absl::SimpleAtoi(parts[2], &failure.after_bytes)) {
    return {};
  }
  return failure;
}

// Marks a change of the disk that is about to be made. Readers must cope with the state that a
// crash leaves here.
void DurablePoint(const char* action, const std::string& path) {
  FailPoint(absl::StrCat("disk: ", action, " ", path));
}

// Writes all of `bytes`. `*written` is the number of bytes in the file so far, and is advanced.
absl::Status WriteAll(int fd, std::string_view bytes, const std::string& path, int64_t* written) {
  const InjectedFailure failure = InjectedFailureFor(path);
  const bool limited = failure.error != 0 && !failure.on_sync && !failure.on_exchange;
  while (!bytes.empty()) {
    size_t count = bytes.size();
    if (limited) {
      const int64_t room = failure.after_bytes - *written;
      if (room <= 0) return ErrnoStatus(failure.error, "write", path);
      count = std::min(count, static_cast<size_t>(room));
    }
    DurablePoint("write", path);
    const ssize_t done = ::write(fd, bytes.data(), count);
    if (done < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "write", path);
    }
    *written += done;
    bytes.remove_prefix(static_cast<size_t>(done));
  }
  return absl::OkStatus();
}

absl::Status SyncFd(int fd, const std::string& path) {
  const InjectedFailure failure = InjectedFailureFor(path);
  if (failure.error != 0 && failure.on_sync) return ErrnoStatus(failure.error, "fsync", path);
  DurablePoint("fsync", path);
  if (::fsync(fd) != 0) return ErrnoStatus(errno, "fsync", path);
  return absl::OkStatus();
}

absl::Status SyncDirectory(std::string directory) {
  if (directory.empty()) directory = ".";
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open", directory);
  const absl::Cleanup closer = [fd] { ::close(fd); };
  DurablePoint("fsync", directory);
  // Some file systems do not support fsync of directories (EINVAL); the rename then is as durable
  // as they allow.
  if (::fsync(fd) != 0 && errno != EINVAL) return ErrnoStatus(errno, "fsync", directory);
  return absl::OkStatus();
}

absl::Status SyncDirectoryOf(const std::string& path) {
  return SyncDirectory(std::filesystem::path(path).parent_path().string());
}

std::string TemporaryName(const std::string& path) { return path + ".tmp"; }

// The suffix of the previous directory while its replacement takes the name, where names cannot be
// exchanged. It does not end in ".tmp", so that code that removes temporary files does not delete
// it.
constexpr char kBefore[] = ".tmp-before";

absl::Status Rename(const std::string& from, const std::string& to) {
  DurablePoint("rename to", to);
  if (::rename(from.c_str(), to.c_str()) != 0) return ErrnoStatus(errno, "rename to", to);
  return absl::OkStatus();
}

// Exchanges the names of two directories. Returns false where the file system or the kernel has no
// such operation.
absl::StatusOr<bool> Exchange(const std::string& temporary, const std::string& path) {
  DurablePoint("exchange", path);
  const InjectedFailure failure = InjectedFailureFor(path);
  errno = failure.error;
  if (!failure.on_exchange &&
      ::renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP) return false;
  return ErrnoStatus(errno, "exchange", path);
}

void Remove(const std::string& path) {
  DurablePoint("remove", path);
  std::error_code ignored;  // leftovers are removed with the next temporary
  std::filesystem::remove_all(path, ignored);
}

// Undoes a replacement that a crash interrupted between its two renames, or completes one that a
// crash interrupted after them.
absl::Status Recover(const std::string& path) {
  const std::string before = path + kBefore;
  std::error_code ignored;
  if (!std::filesystem::exists(before, ignored)) return absl::OkStatus();
  if (std::filesystem::exists(path, ignored)) {
    Remove(before);
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(Rename(before, path));
  return SyncDirectoryOf(path);
}

// Moves `temporary` to `path`, in this order: the new directory is complete and synced before it
// gets the name; the two names are exchanged in one step, or else renamed one after the other; the
// parent is synced; only then is the old directory removed. A crash at any point leaves a complete
// directory at `path` or, between two renames, at the .tmp-before name, from which Recover restores
// it.
absl::Status Replace(const std::string& temporary, const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    TANDEM_RETURN_IF_ERROR(Rename(temporary, path));
    return SyncDirectoryOf(path);
  }
  TANDEM_ASSIGN_OR_RETURN(const bool exchanged, Exchange(temporary, path));
  const std::string before = exchanged ? temporary : path + kBefore;
  if (!exchanged) {
    TANDEM_RETURN_IF_ERROR(Rename(path, before));
    const absl::Status renamed = Rename(temporary, path);
    if (!renamed.ok()) {
      Rename(before, path).IgnoreError();
      return renamed;
    }
  }
  TANDEM_RETURN_IF_ERROR(SyncDirectoryOf(path));
  Remove(before);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  const absl::Cleanup closer = [fd] { ::close(fd); };
  std::string contents;
  char block[1 << 16];
  for (;;) {
    const ssize_t count = ::read(fd, block, sizeof(block));
    if (count == 0) return contents;
    if (count < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "read", path);
    }
    contents.append(block, static_cast<size_t>(count));
  }
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view contents) {
  TANDEM_ASSIGN_OR_RETURN(const auto writer, AtomicFileWriter::Create(path));
  TANDEM_RETURN_IF_ERROR(writer->Write(std::as_bytes(std::span(contents))));
  return writer->Commit();
}

absl::Status WritePrivateFile(const std::string& path, std::string_view contents) {
  const std::string temporary = path + ".tmp";
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  const auto failed = [&](const char* what) {
    return Unavailable(what, " ", path, ": ", std::strerror(errno));
  };
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return failed("create");
  const bool written =
      write(fd, contents.data(), contents.size()) == static_cast<ssize_t>(contents.size()) &&
      fsync(fd) == 0;
  const absl::Status status = written ? absl::OkStatus() : failed("write");
  close(fd);
  if (!status.ok()) return status;
  return rename(temporary.c_str(), path.c_str()) == 0 ? absl::OkStatus() : failed("rename to");
}

absl::Status WriteDirectoryAtomically(
    const std::string& name, absl::FunctionRef<absl::Status(const std::string& directory)> fill) {
  std::string path = name;
  while (path.size() > 1 && path.ends_with('/'))
    path.pop_back();  // PATH.tmp must be beside the directory, not inside it
  const std::string temporary = TemporaryName(path);
  std::error_code ignored;
  TANDEM_RETURN_IF_ERROR(Recover(path));
  std::filesystem::remove_all(temporary, ignored);
  absl::Status status = MakeDirectories(temporary);
  if (status.ok()) status = fill(temporary);
  if (status.ok()) status = SyncDirectory(temporary);
  if (status.ok()) status = Replace(temporary, path);
  if (!status.ok()) std::filesystem::remove_all(temporary, ignored);
  return status;
}

absl::Status RecoverDirectories(const std::string& parent) {
  std::vector<std::string> paths;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string path = entry.path().string();
    if (path.ends_with(kBefore)) paths.push_back(path.substr(0, path.size() - sizeof(kBefore) + 1));
  }
  for (const std::string& path : paths) TANDEM_RETURN_IF_ERROR(Recover(path));
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), "mkdir", path);
  if (!std::filesystem::is_directory(path, error)) return ErrnoStatus(ENOTDIR, "mkdir", path);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<AppendFile>> AppendFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  return std::unique_ptr<AppendFile>(new AppendFile(fd, path));
}

AppendFile::AppendFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

AppendFile::~AppendFile() { ::close(fd_); }

absl::Status AppendFile::Append(std::string_view bytes) {
  return WriteAll(fd_, bytes, path_, &written_);
}

absl::Status AppendFile::Sync() { return SyncFd(fd_, path_); }

absl::StatusOr<std::unique_ptr<AtomicFileWriter>> AtomicFileWriter::Create(
    const std::string& path) {
  const std::string temporary = TemporaryName(path);
  DurablePoint("create", temporary);
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus(errno, "open", temporary);
  return std::unique_ptr<AtomicFileWriter>(new AtomicFileWriter(fd, path));
}

AtomicFileWriter::AtomicFileWriter(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(TemporaryName(path_).c_str());
}

absl::Status AtomicFileWriter::Write(std::span<const std::byte> bytes) {
  if (fd_ < 0) return FailedPrecondition(path_, ": already committed");
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return WriteAll(fd_, text, path_, &written_);
}

absl::Status AtomicFileWriter::Commit() {
  if (fd_ < 0) return FailedPrecondition(path_, ": already committed");
  TANDEM_RETURN_IF_ERROR(SyncFd(fd_, path_));
  // A network file system may report a failed write only here.
  const int closed = ::close(std::exchange(fd_, -1));
  const std::string temporary = TemporaryName(path_);
  DurablePoint("rename to", path_);
  if (closed != 0 || ::rename(temporary.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    return ErrnoStatus(error, closed != 0 ? "close" : "rename", path_);
  }
  return SyncDirectoryOf(path_);
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  const absl::Cleanup closer = [fd] { ::close(fd); };
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    return ErrnoStatus(S_ISDIR(info.st_mode) ? EISDIR : EINVAL, "map", path);
  }
  const size_t size = static_cast<size_t>(info.st_size);
  void* address = nullptr;  // an empty file has nothing to map
  if (size > 0) address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (address == MAP_FAILED) return ErrnoStatus(errno, "map", path);
  return std::shared_ptr<const MappedFile>(
      new MappedFile({static_cast<const std::byte*>(address), size}, path));
}

MappedFile::MappedFile(std::span<const std::byte> bytes, std::string path)
    : bytes_(bytes), path_(std::move(path)) {}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

absl::StatusOr<std::unique_ptr<DirectoryLock>> DirectoryLock::Take(const std::string& path,
                                                                   double patience_seconds) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open failed"));
  std::unique_ptr<DirectoryLock> lock(new DirectoryLock(fd));
  const double end = MonotonicSeconds() + patience_seconds;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (MonotonicSeconds() >= end) {
      return AlreadyExists(path, ": another process writes there");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return lock;
}

DirectoryLock::~DirectoryLock() { close(fd_); }

}  // namespace tandem
