// EndWhileLoading: a stop ends a process at once while it loads.
#ifndef TANDEM_COMMON_PROCESS_END_WHILE_LOADING_H_
#define TANDEM_COMMON_PROCESS_END_WHILE_LOADING_H_

#include <atomic>
#include <thread>

#include "common/base/exit_codes.h"
#include "common/process/stop_signal.h"

namespace tandem {

// While it lives, a stop ends the process within about 20 ms, with `code` or, without one, with the
// exit code of the signal, and without running destructors: nothing has been written yet, nobody is
// served, and what a load waits for (a file system that hangs, other ranks) may never come.
// `stop` outlives it. Thread-compatible.
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

#endif  // TANDEM_COMMON_PROCESS_END_WHILE_LOADING_H_
