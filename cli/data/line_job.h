// LineJob: a long job on the lines of a JSON lines file, several lines at a time, whose rows are
// appended in the order of the lines. A job that was cut short goes on after the last row that was
// written. Used by the commands that make data with a rollout server.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {

struct LineJob {
  std::string data, out;  // JSON lines; `out` must differ
  std::string settings;   // what rows depend on, "name value" a line; kept in OUT.settings
  int64_t workers = 8;    // lines at a time
};

struct LineCounts {
  int64_t lines = 0;    // of the file
  int64_t resumed = 0;  // of them, before the one where this job began
  int64_t rows = 0;     // written by this job
  int64_t skipped = 0;  // lines of this job without a row
};

// What becomes of a line: a row, or none. Called on worker threads; an error ends the job.
using LineWork = std::function<absl::StatusOr<std::optional<nlohmann::ordered_json>>(
    const nlohmann::json& line, int64_t number)>;

// Each row gets a field "line", the number of its line from 1, by which a job goes on. `progress`
// is called with the number of lines that are done, one call at a time.
//   INVALID_ARGUMENT  a line that is no JSON object; OUT holds a row without "line", or was begun
//                     with other settings (named). Errors of `work` are given "FILE:LINE: "; rows
//                     before that line are written
//   NOT_FOUND         no such file
//   UNAVAILABLE       OUT cannot be written (exit code kStorage)
absl::StatusOr<LineCounts> RunLines(
    const LineJob& job, const LineWork& work,
    const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace tandem::cli
