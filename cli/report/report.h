// The HTML pages of `tandem`: the report of a run, and the page of an attribution. Each is one file
// that opens without a network.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::report {

// Reads the run in `run_directory` and writes the report to `output_path` (empty: report.html in
// the run directory), completely or not at all. It reads only the files of docs/run_directory.md,
// so it works on a run in progress, a run that died, and a directory copied from another machine. A
// panel whose file is missing is left out. A malformed line is skipped and named by FILE:LINE in a
// notice on the page. An incomplete last line is a write in progress and is skipped without a
// notice.
//   NOT_FOUND  there is no such directory, or it has none of run.json, metrics.jsonl, events.jsonl
//   PERMISSION_DENIED, UNAVAILABLE, RESOURCE_EXHAUSTED  the page cannot be written (path, strerror)
absl::Status WriteReport(const std::string& run_directory, const std::string& output_path);

// The same page as text. `run_directory_for_links`: the path of the run directory from where the
// page will be.
absl::StatusOr<std::string> RenderReport(const std::string& run_directory,
                                         const std::string& run_directory_for_links);

// The page of `tandem drift attribute --html`. `data` is that of
// drift_lab/pages/attribution_report.h, and `name` is in the title.
std::string AttributionHtml(const std::string& name, std::string data);

// The page of `tandem drift why RECORDS --html`. `data` is that of
// drift_lab/pages/screening_report.h, and `name` is in the title.
std::string RecordsHtml(const std::string& name, std::string data);

// The page of a reward model, from the numbers of cli/supervised/reward_report.h as JSON.
std::string RewardModelHtml(const std::string& name, std::string data);

}  // namespace tandem::report
