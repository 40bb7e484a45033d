#include "drift_lab/phase/phase_table.h"

#include <algorithm>
#include <cmath>

namespace tandem::drift {
namespace {

// The mean of the values that are not NaN.
struct Mean {
  double sum = 0, count = 0;
  void Add(double value) {
    if (std::isnan(value)) return;
    sum += value;
    ++count;
  }
  double value() const { return sum / count; }  // NaN without values
};

PhaseEntry MakeEntry(const Cell& cell, Method method, int num_seeds, const RunStore& store) {
  PhaseEntry entry{.cell = cell, .method = method, .worst = 1};
  std::vector<double> scores;
  Mean start, max_logit, kept_positive, kept_negative;
  for (const PlannedRun& planned : Plan({&cell, 1}, {&method, 1}, num_seeds)) {
    const RunResult* run = store.Find(planned);
    if (run == nullptr) continue;
    scores.push_back(run->score);
    entry.worst = std::min(entry.worst, run->score);
    entry.num_halved += run->halved_at >= 0;
    start.Add(run->start);
    double largest = -INFINITY;
    for (const TraceRow& row : run->trace) largest = std::max(largest, At(row, Watched::kMaxLogit));
    max_logit.Add(largest);
    kept_positive.Add(At(run->trace.front(), Watched::kKeptPositive));
    kept_negative.Add(At(run->trace.front(), Watched::kKeptNegative));
  }
  entry.num_seeds = static_cast<int>(scores.size());
  entry.score = StudentInterval(scores);
  entry.start = start.value();
  entry.max_logit = max_logit.value();
  entry.kept_positive = kept_positive.value();
  entry.kept_negative = kept_negative.value();
  return entry;
}

double MeanOf(Watched watched, std::span<const TraceRow> trace) {
  double sum = 0;
  for (const TraceRow& row : trace) sum += At(row, watched);
  return sum / static_cast<double>(trace.size());
}

KindEffect MakeEffect(const Cell& cell, const Cell& no_gap, Method method, int num_seeds,
                      const RunStore& store) {
  KindEffect effect{.cell = cell, .method = method, .worst = 1};
  std::vector<double> scores, losses, mean_losses;
  for (int seed = 1; seed <= num_seeds; ++seed) {
    const auto number = static_cast<uint64_t>(seed);
    const RunResult* run = store.Find({cell, method, number});
    const RunResult* partner = store.Find({no_gap, method, number});
    if (run == nullptr || partner == nullptr) continue;
    scores.push_back(run->score);
    losses.push_back(partner->score - run->score);
    mean_losses.push_back(partner->mean_score - run->mean_score);
    effect.worst = std::min(effect.worst, run->score);
    effect.num_halved += run->halved_at >= 0;
    const std::span<const TraceRow> trace = run->trace;
    effect.first_kl += At(trace.front(), Watched::kKl);
    effect.mean_kl += MeanOf(Watched::kKl, trace);
    const size_t last = std::min<size_t>(trace.size(), kScoredUpdates / kTraceStride);
    effect.last_reward += MeanOf(Watched::kReward, trace.last(last));
  }
  const auto n = static_cast<double>(scores.size());
  effect.num_seeds = static_cast<int>(scores.size());
  effect.score = StudentInterval(scores);
  effect.loss = StudentInterval(losses);
  effect.mean_score_loss = StudentInterval(mean_losses);
  effect.first_kl /= n;
  effect.mean_kl /= n;
  effect.last_reward /= n;
  return effect;
}

}  // namespace

std::vector<PhaseEntry> MakePhaseTable(std::span<const Cell> cells, std::span<const Method> methods,
                                       int num_seeds, const RunStore& store) {
  std::vector<PhaseEntry> table;
  for (const Cell& cell : cells) {
    for (const Method method : methods) {
      PhaseEntry entry = MakeEntry(cell, method, num_seeds, store);
      if (entry.num_seeds > 0) table.push_back(std::move(entry));
    }
  }
  return table;
}

std::vector<KindEffect> MakeKindEffects(std::span<const Cell> kinds, const Cell& no_gap,
                                        std::span<const Method> methods, int num_seeds,
                                        const RunStore& store) {
  std::vector<KindEffect> effects;
  for (const Cell& kind : kinds) {
    for (const Method method : methods) {
      KindEffect effect = MakeEffect(kind, no_gap, method, num_seeds, store);
      if (effect.num_seeds > 0) effects.push_back(std::move(effect));
    }
  }
  return effects;
}

}  // namespace tandem::drift
