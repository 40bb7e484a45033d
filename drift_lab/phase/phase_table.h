// PhaseTable: results over seeds, with one row per cell and one column per method.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "drift_lab/phase/cells.h"
#include "drift_lab/phase/run_store.h"
#include "drift_lab/phase/seed_intervals.h"

namespace tandem::drift {

struct PhaseEntry {
  Cell cell;
  Method method;
  int num_seeds = 0;
  SeedInterval score;        // mean over seeds, Student's t
  double worst = 0;          // the lowest score of a seed
  double start = 0;          // mean score before the first update
  int num_halved = 0;        // seeds whose score fell below half of its highest
  double max_logit = 0;      // largest logit in the run's trace, mean over seeds
  double kept_positive = 0;  // share of kept tokens with advantage > 0 at step 0, mean over seeds
  double kept_negative = 0;  // the same with advantage < 0
};

// Uses the runs of `cells` x `methods` x seeds 1 .. num_seeds that the store has. Entries without a
// run are left out.
std::vector<PhaseEntry> MakePhaseTable(std::span<const Cell> cells, std::span<const Method> methods,
                                       int num_seeds, const RunStore& store);

}  // namespace tandem::drift
