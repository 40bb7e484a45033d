// RunStore and RunGrid: the runs of a study, made on several threads and stored in a file, so that
// an interrupted study of thousands of runs continues where it was.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/file_system.h"
#include "drift_lab/phase/cells.h"
#include "drift_lab/phase/toy/run.h"

namespace tandem::drift {

// A file of JSON lines. The first line names the format; each further line is one run, with cell,
// method, seed and steps as key. Find returns the numbers with the digits that the file has, so
// that a resumed study gives the same results as one that was not interrupted. Thread-compatible.
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

struct GridHooks {
  // Called after each run, by one thread at a time: how many of the missing runs are stored, how
  // many were missing, and the last one.
  std::function<void(int64_t done, int64_t total, const PlannedRun& last)> on_progress;
  // Called before each run; true ends the grid. Runs in progress are finished and stored.
  std::function<bool()> should_stop;
};

// Makes the runs of `plan` that the store lacks, on `threads` >= 1 threads, each by one call of
// `make` (usually MakeRun), which must be thread-safe. Runs are stored in the order of the plan, so
// the file depends neither on the number of threads nor on interruptions.
//   CANCELLED  should_stop returned true
//   any error of RunStore::Add
absl::Status RunGrid(std::span<const PlannedRun> plan, int threads,
                     const std::function<RunResult(const PlannedRun&)>& make, RunStore& store,
                     const GridHooks& hooks);

RunResult MakeRun(const PlannedRun& run);

}  // namespace tandem::drift
