// StopSignal: SIGTERM and SIGINT as one flag that threads can wait for. A second signal ends the
// process at once, with 128 plus its number as exit code. SIGPIPE is ignored while this object
// lives, so that a peer that died is an errno of the write. One per process, constructed in main
// before threads start. Methods are thread-safe.
#ifndef TANDEM_COMMON_PROCESS_STOP_SIGNAL_H_
#define TANDEM_COMMON_PROCESS_STOP_SIGNAL_H_

#include <chrono>

namespace tandem {

class StopSignal {
 public:
  StopSignal();   // installs the handlers
  ~StopSignal();  // restores the previous ones
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool Requested() const;

  // The number of the signal; 0 if none came.
  int signal() const;

  // Waits for at most `timeout`. True if a stop was requested.
  bool WaitFor(std::chrono::milliseconds timeout) const;

  // Requests a stop without a signal; for owners that stop themselves, and for tests.
  void Request();
};

}  // namespace tandem

#endif  // TANDEM_COMMON_PROCESS_STOP_SIGNAL_H_
