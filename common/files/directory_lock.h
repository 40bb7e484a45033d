// DirectoryLock: one process at a time writes to a directory. The kernel lets go of it when the
// process ends, however it does.
#ifndef TANDEM_COMMON_FILES_DIRECTORY_LOCK_H_
#define TANDEM_COMMON_FILES_DIRECTORY_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

class DirectoryLock {
 public:
  // Of a directory that is there; tries for `patience_seconds`. On a file system without such locks
  // (some network ones) it is had at once, and keeps nobody out.
  //   ALREADY_EXISTS     another process, or this one, has it
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

#endif  // TANDEM_COMMON_FILES_DIRECTORY_LOCK_H_
