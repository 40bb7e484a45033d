#include "common/rpc/memory_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tandem::rpc {

MemoryFile::MemoryFile() : fd_(memfd_create("tandem-tls", MFD_CLOEXEC)) {}

MemoryFile::~MemoryFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MemoryFile::Write(const std::string& contents) {
  const timespec now = {.tv_sec = ++generation_, .tv_nsec = 0};
  const timespec times[2] = {now, now};
  const auto size = static_cast<ssize_t>(contents.size());
  // Over what was there first, so that no reader finds it empty.
  const bool written = fd_ >= 0 && pwrite(fd_, contents.data(), contents.size(), 0) == size &&
                       ftruncate(fd_, size) == 0 && futimens(fd_, times) == 0;
  if (written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("a file in memory: ", std::strerror(errno)));
}

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

}  // namespace tandem::rpc
