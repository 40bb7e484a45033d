// The HTML report of a run: one file that opens without a network. `tandem report` and the launcher
// call it. It reads only the files of docs/run_directory.md, so it works on a run in progress, on a
// run that died, and on a directory copied from another machine.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace tandem::report {

// Reads the run in `run_directory` and writes the page to `output_path` (empty: report.html in the
// run directory), whole or not at all. A missing file leaves its panel out; a malformed line is
// skipped and named by FILE:LINE in a notice on the page; a last line without its newline is a
// write in progress and is skipped in silence.
//   NOT_FOUND           no such directory, or none of run.json, metrics.jsonl, events.jsonl in it
//   PERMISSION_DENIED, UNAVAILABLE, RESOURCE_EXHAUSTED  the page cannot be written (path, strerror)
absl::Status WriteReport(const std::string& run_directory, const std::string& output_path);

}  // namespace tandem::report
