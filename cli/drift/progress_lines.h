// The progress of the lab's commands, and how its studies end. On a terminal the progress is one
// line that is updated; elsewhere it is a few lines.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cli/io/live_line.h"
#include "common/base/clock.h"
#include "common/process/stop_signal.h"

namespace tandem::cli {

// Shows the progress of a few long passes: what is running, how much is done (a fraction), since
// when. Elsewhere than on a terminal, one line per pass. The line is cleared when the function and
// its copies are gone. Thread-compatible.
std::function<void(const std::string& what, double done)> PassLine();

// Progress of a study (drift phase, drift calibrate), which is many small pieces of work:
// "[####....] 40/100  what, 3:07 min left". Elsewhere than on a terminal, a line after every
// hundredth piece and the last. Thread-compatible.
class StudyLine {
 public:
  void Show(int64_t done, int64_t total, const std::string& what);

 private:
  LiveLine line_;
  const double start_ = MonotonicSeconds();
};

// `end`, with the exit code of the signal if the signal `stop` ended the study.
absl::Status StoppedBy(const StopSignal& stop, const absl::Status& end);

// Prints an error and returns the exit code: bad data if the study's store is damaged or of another
// study; storage for every other error.
int ExitAfterStudy(const absl::Status& status);

}  // namespace tandem::cli
