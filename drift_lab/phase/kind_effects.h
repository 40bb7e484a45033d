// KindEffects: what a gap of one kind and one KL costs, against no gap under the same method and
// seed.
#pragma once

#include <span>
#include <vector>

#include "drift_lab/phase/cells.h"
#include "drift_lab/phase/seed_intervals.h"
#include "drift_lab/phase/run_store.h"

namespace tandem::drift {

struct KindEffect {
  KindCell kind;
  Method method;
  int num_seeds = 0;
  Interval score;            // at the end
  Interval loss;             // score without a gap minus this one, paired by seed
  Interval mean_score_loss;  // the same of the mean over the run: how much slower
  double worst = 0;          // seed's score
  int num_halved = 0;
  double first_kl = 0;  // exact KL(mu || pi), mean over the tokens of the first batch and seeds
  double mean_kl = 0;   // over the run
  double last_reward =
      0;  // mean reward of the last kScoredUpdates steps: what the sampler achieves
};

// Of the runs with seeds 1 .. num_seeds whose partner without a gap is in the store too.
std::vector<KindEffect> MakeKindEffects(std::span<const KindCell> kinds, const Cell& no_gap,
                                        std::span<const Method> methods, int num_seeds,
                                        const RunStore& store);

}  // namespace tandem::drift
