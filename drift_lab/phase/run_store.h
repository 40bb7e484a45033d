// RunStore: finished runs in a file of JSON lines, so that an interrupted study of thousands of
// runs continues where it was. The first line names the format; each further line is one run, with
// cell, method, seed and steps as key. Find returns the numbers with the digits that the file has,
// so that a resumed study gives the same results as one that was not interrupted.
// Thread-compatible.
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
  // Creates the file, or reads its runs. A last line that an interruption cut short is dropped.
  //   INVALID_ARGUMENT  "PATH:LINE: ...": a line is not a run, or the file has another format,
  //                     because the results of a run have changed since it was written
  //   any error of file_system.h
  static absl::StatusOr<std::unique_ptr<RunStore>> Open(const std::string& path);

  // Null if the run has not been made. Valid as long as the store.
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
