// RunGrid: makes the runs of a study on several threads and stores them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "drift_lab/phase/cells.h"
#include "drift_lab/phase/run_store.h"

namespace tandem::drift {

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
