// RunStageProcess: one command of a stage as a child process, whose lines are shown and logged.
// Used by pipeline_run.h.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/io/child_process.h"
#include "common/process/stop_signal.h"

namespace tandem::cli {

// Starts `argv`, shows its standard output and standard error on those of this process, appends
// both to the file `log`, and waits for its end. A stop signal is passed on once; the child saves
// what it can and ends. Where this process is killed, the kernel sends the child SIGTERM. To be
// called from the main thread.
//   UNAVAILABLE  the program does not exist, or the log cannot be written
absl::StatusOr<ChildEnd> RunStageProcess(const std::string& name,
                                         const std::vector<std::string>& argv,
                                         const std::string& log, const StopSignal& stop);

}  // namespace tandem::cli
