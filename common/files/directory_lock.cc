#include "common/files/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<DirectoryLock>> DirectoryLock::Take(const std::string& path,
                                                                   double patience_seconds) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": open failed"));
  std::unique_ptr<DirectoryLock> lock(new DirectoryLock(fd));
  const double end = MonotonicSeconds() + patience_seconds;
  while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (MonotonicSeconds() >= end) {
      return absl::AlreadyExistsError(absl::StrCat(path, ": another process writes there"));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return lock;
}

DirectoryLock::~DirectoryLock() { close(fd_); }

}  // namespace tandem
