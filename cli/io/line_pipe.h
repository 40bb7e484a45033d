// LinePipe: the read end of a pipe into which a child writes text, as whole lines. ChildProcess and
// those who start children use it.
#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// Thread-compatible. Never waits; holds at most one line.
class LinePipe {
 public:
  // Owns `fd` and makes it non-blocking; -1: a pipe in which nothing ever comes.
  explicit LinePipe(int fd);
  ~LinePipe();
  LinePipe(const LinePipe&) = delete;
  LinePipe& operator=(const LinePipe&) = delete;

  int fd() const { return fd_; }

  // What came since the last call, without line ends. What stands behind the last one is kept, but
  // a line that is longer than kLongestLine comes in pieces.
  std::vector<std::string> Lines();

  // What was written without a line end; for when the child ended.
  std::string Rest();

  static constexpr size_t kLongestLine = 64 << 10;  // bytes

 private:
  const int fd_;
  std::string partial_;
};

}  // namespace tandem::cli
