// LocalRun: carries out a run file on this machine: it checks the inputs, launches the processes
// and writes the report. `tandem run`, `tandem demo`, `tandem bench train` and `tandem drift
// inject` use it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/run/launcher.h"
#include "cli/run_file/run_file.h"

namespace tandem::cli {

struct LocalRunOptions {
  std::string config;             // path of the run file
  std::vector<std::string> sets;  // KEY=VALUE
  bool resume = false;
  bool clean = false;
  // Starts nothing and prints the resolved configuration, its differences from the defaults, the
  // plan and the numbers of prompts. It is an error if a model, a file or a program is missing.
  bool dry_run = false;
};

struct LocalRunResult {
  ExitCode exit_code = ExitCode::kOk;
  RunSummary summary;
  std::string run_directory;
  std::string report;  // path; empty if none was written
};

// Errors occur before any process is started: in the file, an option, a model directory, a data
// file, a device or a program. They carry their exit code (common/base/exit_codes.h).
absl::StatusOr<LocalRunResult> RunLocally(const LocalRunOptions& options);

}  // namespace tandem::cli
