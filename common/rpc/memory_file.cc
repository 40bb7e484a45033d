#include "common/rpc/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tandem::rpc {
namespace {

constexpr char kName[] = "tandem-tls";

}  // namespace

MemoryFile::MemoryFile() : fd_(memfd_create(kName, MFD_CLOEXEC)) {}

MemoryFile::~MemoryFile() {
  if (fd_ >= 0) close(fd_);
}

absl::Status MemoryFile::Write(const std::string& contents) {
  const timespec now = {.tv_sec = ++generation_, .tv_nsec = 0};
  const timespec times[2] = {now, now};
  const int next = memfd_create(kName, MFD_CLOEXEC);
  const bool written =
      fd_ >= 0 && next >= 0 &&
      write(next, contents.data(), contents.size()) == static_cast<ssize_t>(contents.size()) &&
      futimens(next, times) == 0 && dup3(next, fd_, O_CLOEXEC) == fd_;
  const int error = errno;
  if (next >= 0) close(next);
  if (written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("a file in memory: ", std::strerror(error)));
}

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

}  // namespace tandem::rpc
