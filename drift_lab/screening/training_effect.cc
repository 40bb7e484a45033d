#include "drift_lab/screening/training_effect.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "drift_lab/screening/row_sums.h"

namespace tandem::drift {
namespace {

using offpolicy::Interval;

enum EffectSums : size_t {
  kCount,
  kAbs,
  kDelta,
  kK3,
  kWeight,
  kWeightSquare,
  kTruncatedCount,
  kClippedCount,
  kPositive,
  kPositiveBias,
  kNegative,
  kNegativeBias,
  kNumEffectSums,
};

// A weight of more than e^30 is a fault of the record, and would hide every other number.
constexpr double kMostDelta = 30;

void AddEffect(double delta, double advantage, std::span<double> sums) {
  const double bounded = std::clamp(delta, -kMostDelta, kMostDelta);
  const double w = std::exp(bounded);
  sums[kCount] += 1;
  sums[kAbs] += std::abs(delta);
  sums[kDelta] += delta;
  sums[kK3] += std::expm1(bounded) - bounded;
  sums[kWeight] += w;
  sums[kWeightSquare] += w * w;
  sums[kTruncatedCount] += w > kTruncateAt;
  sums[kClippedCount] += w < kClipBelow || w > kClipAbove;
  if (advantage > 0) {
    sums[kPositive] += advantage;
    sums[kPositiveBias] += advantage * (w - 1);
  } else if (advantage < 0) {
    sums[kNegative] -= advantage;
    sums[kNegativeBias] -= advantage * (w - 1);
  }
}

void SetQuantiles(std::vector<float>& sizes, TrainingEffect& effect) {
  if (sizes.empty()) return;
  const auto quantile = [&](double q) {
    const auto at =
        sizes.begin() + static_cast<std::ptrdiff_t>(q * static_cast<double>(sizes.size() - 1));
    std::ranges::nth_element(sizes, at);
    return static_cast<double>(*at);
  };
  effect.abs_delta_p50 = quantile(0.5);
  effect.abs_delta_p99 = quantile(0.99);
  effect.abs_delta_p999 = quantile(0.999);
  effect.max_abs_delta = quantile(1);
}

}  // namespace

TrainingEffect EffectOnTraining(const Records& records, const TokenPairs& pairs, uint64_t seed) {
  TrainingEffect effect;
  const std::vector<float> advantages = AtDrawnTokens(records, pairs, Column::kAdvantages);
  std::vector<float> sizes;
  const offpolicy::ClusterSums clusters =
      SumRows(pairs, kNumEffectSums, [&](int64_t row, std::span<double> sums) {
        const double of_row = records.rows[static_cast<size_t>(row)].advantage.value_or(0);
        bool any = false;
        for (size_t m = pairs.begin_of(row); m < pairs.end_of(row); ++m) {
          const double delta = pairs.delta(m);
          if (!std::isfinite(delta)) continue;
          any = true;
          const double own =
              advantages.empty() || std::isnan(advantages[m]) ? of_row : advantages[m];
          effect.has_advantages |= own != 0;
          AddEffect(delta, own, sums);
          sizes.push_back(static_cast<float>(std::abs(delta)));
        }
        effect.num_rows += any;
      });
  effect.num_tokens = std::ssize(sizes);
  if (sizes.empty()) return effect;
  using offpolicy::RatioOfSums;
  const offpolicy::Statistic statistics[] = {
      RatioOfSums(kAbs, kCount),
      RatioOfSums(kDelta, kCount),
      [](std::span<const double> s) { return -s[kDelta] / s[kCount]; },
      RatioOfSums(kK3, kCount),
      RatioOfSums(kWeight, kCount),
      [](std::span<const double> s) {
        return s[kWeight] * s[kWeight] / (s[kCount] * s[kWeightSquare]);
      },
      RatioOfSums(kTruncatedCount, kCount),
      RatioOfSums(kClippedCount, kCount),
      RatioOfSums(kPositiveBias, kPositive),
      RatioOfSums(kNegativeBias, kNegative)};
  const std::vector<Interval> found =
      offpolicy::BootstrapIntervals(clusters, statistics, {.seed = seed});
  Interval* const fields[] = {
      &effect.mean_abs_delta, &effect.mean_delta,   &effect.k1,        &effect.k3,
      &effect.mean_w,         &effect.ess,          &effect.truncated, &effect.clipped,
      &effect.bias_positive,  &effect.bias_negative};
  for (size_t i = 0; i < found.size(); ++i) *fields[i] = found[i];
  SetQuantiles(sizes, effect);
  return effect;
}

}  // namespace tandem::drift
