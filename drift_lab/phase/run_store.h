// RunStore: finished runs in a file of JSON lines, so that a study of thousands of runs goes on
// where it was interrupted. The first line names the format; each further line is one run, keyed by
// cell, method, seed and steps. What is asked back is what the file holds, digits and all, so that
// a study that was resumed says the same as one that was not. Thread-compatible.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_system.h"
#include "drift_lab/phase/cells.h"
#include "drift_lab/phase/toy/run.h"

namespace tandem::drift {

class RunStore {
 public:
  // Makes the file, or reads the runs it has. A last line that an interruption cut short is
  // dropped.
  //   INVALID_ARGUMENT  "PATH:LINE: ..." another line is no run, or the file is of another format:
  //                     what a run computes has changed since it was written
  //   errors of file_system.h
  static absl::StatusOr<std::unique_ptr<RunStore>> Open(const std::string& path);

  // Null where the run has not been made. Valid as long as the store.
  const RunResult* Find(const PlannedRun& run) const;

  // Writes a run and keeps it.
  absl::Status Add(const PlannedRun& run, const RunResult& result);

 private:
  using Key = std::tuple<std::string, std::string, uint64_t, int>;  // cell, method, seed, steps

  explicit RunStore(std::string path) : path_(std::move(path)) {}
  static Key KeyOf(const PlannedRun& run);
  absl::Status Read(const std::string& text);
  absl::Status ReadLine(const std::string& line);

  const std::string path_;
  std::unique_ptr<AppendFile> file_;
  std::map<Key, RunResult> runs_;
};

}  // namespace tandem::drift
