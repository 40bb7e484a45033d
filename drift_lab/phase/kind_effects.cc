#include "drift_lab/phase/kind_effects.h"

#include <algorithm>

namespace tandem::drift {
namespace {

double MeanOf(Watched watched, std::span<const TraceRow> trace) {
  double sum = 0;
  for (const TraceRow& row : trace) sum += At(row, watched);
  return sum / static_cast<double>(trace.size());
}

KindEffect MakeEffect(const KindCell& kind, const Cell& no_gap, Method method, int num_seeds,
                      const RunStore& store) {
  KindEffect effect{.kind = kind, .method = method, .worst = 1};
  std::vector<double> scores, losses, mean_losses;
  for (int seed = 1; seed <= num_seeds; ++seed) {
    const auto number = static_cast<uint64_t>(seed);
    const RunResult* run = store.Find({kind.cell, method, number});
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

std::vector<KindEffect> MakeKindEffects(std::span<const KindCell> kinds, const Cell& no_gap,
                                        std::span<const Method> methods, int num_seeds,
                                        const RunStore& store) {
  std::vector<KindEffect> effects;
  for (const KindCell& kind : kinds) {
    for (const Method method : methods) {
      KindEffect effect = MakeEffect(kind, no_gap, method, num_seeds, store);
      if (effect.num_seeds > 0) effects.push_back(std::move(effect));
    }
  }
  return effects;
}

}  // namespace tandem::drift
