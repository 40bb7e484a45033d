// Results of the runs over seeds: the table of the phase diagram, with one row per cell and one
// column per method; and the cost of a gap of one kind and one KL, compared with no gap under the
// same method and seed.
#pragma once

#include <span>
#include <vector>

#include "drift_lab/phase/cells.h"
#include "drift_lab/phase/grid.h"
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

struct KindEffect {
  Cell cell;
  Method method;
  int num_seeds = 0;
  SeedInterval score;            // at the end
  SeedInterval loss;             // score without a gap minus this score, paired by seed
  SeedInterval mean_score_loss;  // the same for the mean score over the run: how much slower it is
  double worst = 0;              // the lowest score of a seed
  int num_halved = 0;
  double first_kl = 0;     // exact KL(mu || pi), mean over the tokens of the first batch and seeds
  double mean_kl = 0;      // the same over the whole run
  double last_reward = 0;  // mean reward of the sampler in the last kScoredUpdates steps
};

// Uses the runs with seeds 1 .. num_seeds for which the store also has the run without a gap.
std::vector<KindEffect> MakeKindEffects(std::span<const Cell> kinds, const Cell& no_gap,
                                        std::span<const Method> methods, int num_seeds,
                                        const RunStore& store);

}  // namespace tandem::drift
