// LocalRun: a run file carried out on this machine: plan, launch, report. `tandem run` and `tandem
// demo` differ only in where the file comes from and what they say around it.
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
  // Start nothing: print the resolved configuration, what differs from the defaults and the plan;
  // an error when a model, a file or a program is missing.
  bool dry_run = false;
};

struct LocalRunResult {
  ExitCode exit_code = ExitCode::kOk;
  RunSummary summary;
  std::string run_directory;
  std::string report;  // path; empty when none was written
};

// Errors are of the configuration, before anything was started: a file, a knob, a model directory,
// a program that is not there. They carry their exit code (common/base/exit_codes.h).
absl::StatusOr<LocalRunResult> RunLocally(const LocalRunOptions& options);

}  // namespace tandem::cli
