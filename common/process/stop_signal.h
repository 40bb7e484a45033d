// StopSignal: SIGTERM and SIGINT as one flag that threads can wait on. A second signal ends the
// process at once with 128 and its number as exit code. SIGPIPE is ignored while it lives: a dead
// peer is an errno at the write. One per process, constructed in main before threads start. Methods
// are thread-safe.
#ifndef TANDEM_COMMON_PROCESS_STOP_SIGNAL_H_
#define TANDEM_COMMON_PROCESS_STOP_SIGNAL_H_

#include <chrono>

namespace tandem {

class StopSignal {
 public:
  StopSignal();   // installs the handlers
  ~StopSignal();  // restores what was there
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool Requested() const;

  // The signal's number, 0 when none came.
  int signal() const;

  // True when a stop was requested, at once or within `timeout`.
  bool WaitFor(std::chrono::milliseconds timeout) const;

  // As if the signal had come; for owners that stop themselves, and tests.
  void Request();
};

}  // namespace tandem

#endif  // TANDEM_COMMON_PROCESS_STOP_SIGNAL_H_
