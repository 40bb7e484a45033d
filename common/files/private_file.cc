#include "common/files/private_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace tandem {

absl::Status WritePrivateFile(const std::string& path, std::string_view contents) {
  const std::string temporary = path + ".tmp";
  std::error_code ignored;
  std::filesystem::remove(temporary, ignored);
  const auto failed = [&](const char* what) {
    return absl::UnavailableError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
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

}  // namespace tandem
