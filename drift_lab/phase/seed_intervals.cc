#include "drift_lab/phase/seed_intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/statistics/distributions.h"
#include "drift_lab/phase/toy/random_numbers.h"

namespace tandem::drift {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr int kResamples = 2000;

// Linear between order statistics.
double SortedQuantile(std::span<const double> sorted, double quantile) {
  const double rank = quantile * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  if (below + 1 >= sorted.size()) return sorted.back();
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[below + 1] - sorted[below]);
}

}  // namespace

Interval StudentInterval(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  if (values.empty()) return {kNone, kNone, kNone};
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / n;
  if (values.size() < 2) return {mean, kNone, kNone};
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double half =
      offpolicy::StudentQuantile(0.975, n - 1) * std::sqrt(squares / (n - 1)) / std::sqrt(n);
  return {mean, mean - half, mean + half};
}

Interval ClusterBootstrap(int num_clusters,
                          const std::function<double(std::span<const int>)>& statistic) {
  const Draws draws(0, Purpose::kBootstrap);
  std::vector<int> times(static_cast<size_t>(num_clusters), 1);
  Interval interval{statistic(times), kNone, kNone};
  std::vector<double> resampled;
  for (int i = 0; i < kResamples && num_clusters > 1; ++i) {
    std::fill(times.begin(), times.end(), 0);
    for (int draw = 0; draw < num_clusters; ++draw) {
      ++times[static_cast<size_t>(
          draws.Below(num_clusters, 0, static_cast<uint32_t>(i), static_cast<uint32_t>(draw)))];
    }
    if (const double value = statistic(times); !std::isnan(value)) resampled.push_back(value);
  }
  if (resampled.empty()) return interval;
  std::sort(resampled.begin(), resampled.end());
  interval.low = SortedQuantile(resampled, 0.025);
  interval.high = SortedQuantile(resampled, 0.975);
  return interval;
}

}  // namespace tandem::drift
