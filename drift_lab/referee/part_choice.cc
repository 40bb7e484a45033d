#include "drift_lab/referee/part_choice.h"

#include <cstddef>

namespace tandem::drift {
namespace {

constexpr double kLeastShare = 0.03;

}  // namespace

std::vector<bool> BestRun(std::span<const double> gap, const Effects& effects,
                          const TokenSet& tokens) {
  std::vector<bool> best(effects.size());
  double most = kLeastShare;
  for (size_t from = 0; from < effects.size(); ++from) {
    std::vector<double> sum(gap.size(), 0.0);
    for (size_t until = from; until < effects.size(); ++until) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += effects[until][i];
      const double share = Explain(gap, sum, tokens, false).share.value;
      if (share <= most) continue;
      most = share;
      best.assign(effects.size(), false);
      for (size_t part = from; part <= until; ++part) best[part] = true;
    }
  }
  return best;
}

std::vector<bool> GreedyParts(std::span<const double> gap, const Effects& effects,
                              const TokenSet& tokens) {
  std::vector<bool> chosen(effects.size());
  std::vector<double> left(gap.begin(), gap.end());
  for (;;) {
    size_t best = effects.size();
    double most = kLeastShare;
    for (size_t i = 0; i < effects.size(); ++i) {
      if (chosen[i]) continue;
      const double share = Explain(left, effects[i], tokens, false).share.value;
      if (share <= most) continue;
      most = share;
      best = i;
    }
    if (best == effects.size()) return chosen;
    chosen[best] = true;
    for (size_t i = 0; i < left.size(); ++i) left[i] -= effects[best][i];
  }
}

}  // namespace tandem::drift
