// KindEffects: the cost of a gap of one kind and one KL, compared with no gap under the same method
// and seed.
#pragma once

#include <span>
#include <vector>

#include "drift_lab/phase/cells.h"
#include "drift_lab/phase/run_store.h"
#include "drift_lab/phase/seed_intervals.h"

namespace tandem::drift {

struct KindEffect {
  KindCell kind;
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
std::vector<KindEffect> MakeKindEffects(std::span<const KindCell> kinds, const Cell& no_gap,
                                        std::span<const Method> methods, int num_seeds,
                                        const RunStore& store);

}  // namespace tandem::drift
