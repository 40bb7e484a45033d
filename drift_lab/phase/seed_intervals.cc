#include "drift_lab/phase/seed_intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/statistics/distributions.h"
#include "common/statistics/sample_statistics.h"
#include "drift_lab/phase/toy/random_numbers.h"

namespace tandem::drift {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr int kResamples = 2000;

}  // namespace

SeedInterval StudentInterval(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  if (values.empty()) return {kNone, kNone, kNone};
  const double mean = offpolicy::Mean(values);
  if (values.size() < 2) return {mean, kNone, kNone};
  const double half = offpolicy::StudentQuantile(0.975, n - 1) *
                      std::sqrt(offpolicy::SquaredDeviations(values) / (n - 1)) / std::sqrt(n);
  return {mean, mean - half, mean + half};
}

SeedInterval BootstrapOverSeeds(int num_clusters,
                                const std::function<double(std::span<const int>)>& statistic) {
  const RandomNumbers random(0, Purpose::kBootstrap);
  std::vector<int> times(static_cast<size_t>(num_clusters), 1);
  SeedInterval interval{statistic(times), kNone, kNone};
  std::vector<double> resampled;
  for (int i = 0; i < kResamples && num_clusters > 1; ++i) {
    std::fill(times.begin(), times.end(), 0);
    for (int pick = 0; pick < num_clusters; ++pick) {
      ++times[static_cast<size_t>(
          random.Below(num_clusters, 0, static_cast<uint32_t>(i), static_cast<uint32_t>(pick)))];
    }
    if (const double value = statistic(times); !std::isnan(value)) resampled.push_back(value);
  }
  if (resampled.empty()) return interval;
  std::sort(resampled.begin(), resampled.end());
  interval.low = offpolicy::SortedQuantile(resampled, 0.025);
  interval.high = offpolicy::SortedQuantile(resampled, 0.975);
  return interval;
}

}  // namespace tandem::drift
