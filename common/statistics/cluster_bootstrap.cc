#include "common/statistics/cluster_bootstrap.h"

#include <algorithm>
#include <cmath>

#include "common/statistics/distributions.h"
#include "common/statistics/sample_statistics.h"

// BCa means bias-corrected and accelerated: the bounds are quantiles of the replicates, at levels
// shifted by two corrections. The bias correction z0 is the normal quantile of the share of
// replicates below the value. The acceleration a says how the standard error changes with the
// parameter. The level of the bound at normal quantile z is
//
//   Phi(z0 + (z0 + z) / (1 - a (z0 + z)))     (Efron and Tibshirani 1993, equation 14.10)
//
// Hesterberg's widening replaces z by sqrt(n / (n - 1)) t_(n-1), because the bootstrap's variance
// is that of the sample with divisor n. Replicates equal to the value count half on each side,
// because discrete statistics often repeat it.
namespace tandem::offpolicy {
namespace {

// SplitMix64 (Steele, Lea and Flood 2014) is small, the same on every platform, and good enough to
// pick clusters.
uint64_t NextRandom(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

double StandardDeviation(std::span<const double> values) {
  double mean = 0, squares = 0;
  for (const double v : values) mean += v / static_cast<double>(values.size());
  for (const double v : values) squares += (v - mean) * (v - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

// The acceleration, sum d^3 / (6 (sum d^2)^1.5) with d = mean - value over the jackknife (Efron and
// Tibshirani 1993, equation 14.15).
double Acceleration(std::span<const double> leave_one_out) {
  double mean = 0, second = 0, third = 0;
  for (const double v : leave_one_out) mean += v / static_cast<double>(leave_one_out.size());
  for (const double v : leave_one_out) {
    second += (mean - v) * (mean - v);
    third += (mean - v) * (mean - v) * (mean - v);
  }
  return second > 0 ? third / (6 * std::pow(second, 1.5)) : 0;
}

}  // namespace

std::vector<double> ClusterSums::Total() const {
  std::vector<double> total(static_cast<size_t>(num_sums));
  for (size_t i = 0; i < values.size(); ++i) total[i % total.size()] += values[i];
  return total;
}

ClusterResampler::ClusterResampler(int64_t num_clusters, uint64_t seed)
    : state_(seed), counts_(static_cast<size_t>(num_clusters)) {}

std::span<const int32_t> ClusterResampler::Next() {
  std::fill(counts_.begin(), counts_.end(), 0);
  for (size_t i = 0; i < counts_.size(); ++i) {
    const auto place = static_cast<unsigned __int128>(NextRandom(state_)) * counts_.size() >> 64;
    ++counts_[static_cast<size_t>(place)];
  }
  return counts_;
}

Interval BcaInterval(double value, std::vector<double>& replicates,
                     std::span<const double> leave_one_out, double level) {
  Interval interval{.value = value};
  const auto n = static_cast<double>(leave_one_out.size());
  const auto finite = [](double x) { return std::isfinite(x); };
  if (n < kLeastClusters || !finite(value) || !std::ranges::all_of(replicates, finite) ||
      !std::ranges::all_of(leave_one_out, finite)) {
    return interval;
  }
  std::ranges::sort(replicates);
  interval.standard_error = StandardDeviation(replicates) * std::sqrt(n / (n - 1));
  if (replicates.front() == replicates.back()) {
    interval.low = interval.high = value;
    return interval;
  }
  const auto below = std::ranges::lower_bound(replicates, value) - replicates.begin();
  const auto up_to = std::ranges::upper_bound(replicates, value) - replicates.begin();
  const double share =
      static_cast<double>(below + up_to) / 2 / static_cast<double>(replicates.size());
  // If the value is outside all of its replicates, the share counts as half a replicate, so that
  // the bias stays finite.
  const double half = 0.5 / static_cast<double>(replicates.size());
  const double bias = NormalQuantile(std::clamp(share, half, 1 - half));
  const double acceleration = Acceleration(leave_one_out);
  const double width = std::sqrt(n / (n - 1)) * StudentQuantile((1 + level) / 2, n - 1);
  const auto bound = [&](double z) {
    const double shifted = bias + z, scale = 1 - acceleration * shifted;
    if (scale <= 0) return z > 0 ? replicates.back() : replicates.front();
    return SortedQuantile(replicates, NormalCdf(bias + shifted / scale));
  };
  interval.low = bound(-width);
  interval.high = bound(width);
  return interval;
}

std::vector<Interval> BootstrapIntervals(const ClusterSums& clusters,
                                         std::span<const Statistic> statistics,
                                         const BootstrapOptions& options) {
  const int64_t num_clusters = clusters.num_clusters();
  const std::vector<double> total = clusters.Total();
  std::vector<Interval> intervals(statistics.size());
  for (size_t k = 0; k < statistics.size(); ++k) intervals[k].value = statistics[k](total);
  if (num_clusters < kLeastClusters) return intervals;

  std::vector<std::vector<double>> replicates(statistics.size()), leave_one_out(statistics.size());
  std::vector<double> sums(total.size());
  ClusterResampler resampler(num_clusters, options.seed);
  for (int64_t r = 0; r < options.replicates; ++r) {
    const std::span<const int32_t> counts = resampler.Next();
    std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t c = 0; c < num_clusters; ++c) {
      const double times = counts[static_cast<size_t>(c)];
      if (times == 0) continue;
      const std::span<const double> row = clusters.row(c);
      for (size_t s = 0; s < sums.size(); ++s) sums[s] += times * row[s];
    }
    for (size_t k = 0; k < statistics.size(); ++k) replicates[k].push_back(statistics[k](sums));
  }
  for (int64_t c = 0; c < num_clusters; ++c) {
    const std::span<const double> row = clusters.row(c);
    for (size_t s = 0; s < sums.size(); ++s) sums[s] = total[s] - row[s];
    for (size_t k = 0; k < statistics.size(); ++k) leave_one_out[k].push_back(statistics[k](sums));
  }
  for (size_t k = 0; k < statistics.size(); ++k) {
    intervals[k] = BcaInterval(intervals[k].value, replicates[k], leave_one_out[k], options.level);
  }
  return intervals;
}

}  // namespace tandem::offpolicy
