// DirectoryLock: lets one process at a time write to a directory. The kernel releases the lock when
// the process ends, in whatever way.
#ifndef TANDEM_COMMON_FILES_DIRECTORY_LOCK_H_
#define TANDEM_COMMON_FILES_DIRECTORY_LOCK_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tandem {

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

#endif  // TANDEM_COMMON_FILES_DIRECTORY_LOCK_H_
