// What the studies of the lab (drift phase, drift calibrate) show while they run and return at
// their end: many small pieces of work, gone on with where they were interrupted.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cli/io/live_line.h"
#include "common/base/clock.h"
#include "common/process/stop_signal.h"

namespace tandem::cli {

// "[####....] 40/100  what, 3:07 min left": on a terminal after every piece, elsewhere a line after
// every hundredth and the last. Thread-compatible.
class StudyLine {
 public:
  void Show(int64_t done, int64_t total, const std::string& what);

 private:
  LiveLine live_;
  const double start_ = MonotonicSeconds();
};

// A study's end as that of a process that `stop` ended, where the study was cut short: with the
// exit code of the signal.
absl::Status StoppedBy(const StopSignal& stop, const absl::Status& end);

// Says what went wrong. A store that is damaged or of another study is bad data; everything else
// that can go wrong is storage.
int ExitAfterStudy(const absl::Status& status);

}  // namespace tandem::cli
