// EndWhileLoading: makes a stop signal end the process at once while it loads.
#ifndef TANDEM_COMMON_PROCESS_END_WHILE_LOADING_H_
#define TANDEM_COMMON_PROCESS_END_WHILE_LOADING_H_

#include <atomic>
#include <thread>

#include "common/base/exit_codes.h"
#include "common/process/stop_signal.h"

namespace tandem {

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

#endif  // TANDEM_COMMON_PROCESS_END_WHILE_LOADING_H_
