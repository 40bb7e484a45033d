// PhaseTable: one row a cell, one column a method, over seeds.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "drift_lab/phase/cells.h"
#include "drift_lab/phase/seed_intervals.h"
#include "drift_lab/phase/run_store.h"

namespace tandem::drift {

struct PhaseEntry {
  Cell cell;
  Method method;
  int num_seeds = 0;
  Interval score;            // mean over seeds, Student's t
  double worst = 0;          // seed
  double start = 0;          // mean before the first update
  int num_halved = 0;        // seeds whose score fell under half its highest
  double max_logit = 0;      // mean over seeds of the largest logit seen in the run's trace
  double kept_positive = 0;  // at step 0, mean over the seeds that have such tokens
  double kept_negative = 0;
};

// Of the runs of `cells` x `methods` x seeds 1 .. num_seeds that the store has; entries without a
// run are left out.
std::vector<PhaseEntry> MakePhaseTable(std::span<const Cell> cells, std::span<const Method> methods,
                                       int num_seeds, const RunStore& store);

}  // namespace tandem::drift
