// Grid: the runs of a study, side by side on threads, into a store.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "drift_lab/phase/cells.h"
#include "drift_lab/phase/run_store.h"

namespace tandem::drift {

struct GridHooks {
  // After each run: how many of the missing ones are stored, how many were missing, and the last
  // one. Called by one thread at a time.
  std::function<void(int64_t done, int64_t total, const PlannedRun& last)> on_progress;
  // Asked before each run: true ends the grid; runs in flight are finished and stored.
  std::function<bool()> should_stop;
};

// Makes what the store lacks of `plan` on `threads` >= 1 threads, each run by one call of `make`,
// and stores it in the plan's order, so the file does not depend on their number, nor on how often
// the grid was interrupted. `make` runs on several threads at once; MakeRun is the one to give.
//   CANCELLED  should_stop said so
//   errors of RunStore::Add
absl::Status RunGrid(std::span<const PlannedRun> plan, int threads,
                     const std::function<RunResult(const PlannedRun&)>& make, RunStore& store,
                     const GridHooks& hooks);

RunResult MakeRun(const PlannedRun& run);

}  // namespace tandem::drift
