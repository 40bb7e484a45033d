// StopSignal: SIGTERM and SIGINT as one flag that threads can wait for. A second signal ends the
// process at once, with 128 plus its number as exit code. SIGPIPE is ignored while this object
// lives, so that a peer that died is an errno of the write. The handlers run on a stack of their own,
// because compute kernels of libraries may use the stack pointer for something else. One per
// process: the main thread constructs it, before other threads start, and destroys it. The other
// methods are thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "common/base/exit_codes.h"

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

// EndWhileLoading: makes a stop signal end the process at once while it loads.
//
// While this object lives, a stop ends the process within about 20 ms and without running
// destructors, with `code` or else with the exit code of the signal. That is safe because nothing
// has been written and no client is served yet, and needed because what a load waits for (a file
// system that hangs, other ranks) may never come. `stop` must outlive this object.
// Thread-compatible.
class EndWhileLoading {
 public:
  explicit EndWhileLoading(const StopSignal& stop);
  EndWhileLoading(const StopSignal& stop, ExitCode code);
  ~EndWhileLoading();
  EndWhileLoading(const EndWhileLoading&) = delete;
  EndWhileLoading& operator=(const EndWhileLoading&) = delete;

 private:
  std::atomic<bool> loaded_{false};
  std::thread thread_;
};

}  // namespace tandem
