#include "cli/io/line_pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tandem::cli {

LinePipe::LinePipe(int fd) : fd_(fd) {
  if (fd_ >= 0) fcntl(fd_, F_SETFL, O_NONBLOCK);
}

LinePipe::~LinePipe() {
  if (fd_ >= 0) close(fd_);
}

std::vector<std::string> LinePipe::Lines() {
  std::vector<std::string> lines;
  char buffer[4096];
  while (fd_ >= 0) {
    const ssize_t count = read(fd_, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    partial_.append(buffer, static_cast<size_t>(count));
    size_t begin = 0;
    for (size_t end; (end = partial_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      lines.push_back(partial_.substr(begin, end - begin));
    }
    partial_.erase(0, begin);
    if (partial_.size() > kLongestLine) lines.push_back(Rest());
  }
  return lines;
}

std::string LinePipe::Rest() { return std::exchange(partial_, {}); }

}  // namespace tandem::cli
