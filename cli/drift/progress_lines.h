// PassLine: progress of the drift lab's commands: what is running, how far it is, since when. A
// line that moves on a terminal; elsewhere one line per pass. Thread-compatible.
#pragma once

#include <string>

#include "cli/io/live_line.h"
#include "common/base/clock.h"

namespace tandem::cli {

class PassLine {
 public:
  void Show(const std::string& what, double done);  // done: share, 0 to 1

 private:
  LiveLine line_;
  const double start_ = MonotonicSeconds();
  std::string last_;
};

}  // namespace tandem::cli
