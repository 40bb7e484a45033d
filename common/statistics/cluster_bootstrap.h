// Confidence intervals for statistics of dependent tokens: the bootstrap resamples whole clusters
// (completions or groups) with replacement, never single tokens (docs/methods.md).
//
// A statistic is a function of additive sums, so a replicate costs one weighted sum over clusters.
// The interval is BCa (Efron 1987), with its levels widened for few clusters as those of a t
// interval are (Hesterberg 2015, "What teachers should know about the bootstrap", section 5.3).
// Pure and reproducible: the resamples are a function of the seed.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace tandem::offpolicy {

// NaN bounds mean that the interval is unknown; the function that makes it says why.
struct Interval {
  double value = 0;
  double low = std::numeric_limits<double>::quiet_NaN();
  double high = std::numeric_limits<double>::quiet_NaN();
  double standard_error = std::numeric_limits<double>::quiet_NaN();

  bool known() const { return low <= high; }
  // True if the interval is known and does not contain `x`.
  bool Excludes(double x) const { return known() && (x < low || x > high); }
};

// The fewest clusters for an interval; with fewer, a bootstrap is not credible.
inline constexpr int64_t kLeastClusters = 8;

// The values of S sums for each of C clusters: [C, S], row-major.
struct ClusterSums {
  int64_t num_sums = 0;
  std::vector<double> values;

  int64_t num_clusters() const {
    return num_sums == 0 ? 0 : static_cast<int64_t>(values.size()) / num_sums;
  }
  std::span<const double> row(int64_t cluster) const {
    return std::span(values).subspan(static_cast<size_t>(cluster * num_sums),
                                     static_cast<size_t>(num_sums));
  }
  void Add(std::span<const double> row) { values.insert(values.end(), row.begin(), row.end()); }
  std::vector<double> Total() const;
};

// A statistic, as a function of the sums [S] over a sample of clusters.
using Statistic = std::function<double(std::span<const double>)>;
inline Statistic RatioOfSums(size_t numerator, size_t denominator) {
  return [=](std::span<const double> sums) { return sums[numerator] / sums[denominator]; };
}

struct BootstrapOptions {
  int64_t replicates = 1000;
  double level = 0.95;
  uint64_t seed = 1;
};

// One interval per statistic, all from the same resamples. Bounds stay unknown with fewer than
// kLeastClusters clusters, and where a statistic is not finite in some replicate.
std::vector<Interval> BootstrapIntervals(const ClusterSums& clusters,
                                         std::span<const Statistic> statistics,
                                         const BootstrapOptions& options = {});

// The same from replicates that the caller made (quantiles, fits): `replicates` [R] of the
// statistic, and `leave_one_out` [C], its value without each cluster in turn. Reorders
// `replicates`.
Interval BcaInterval(double value, std::vector<double>& replicates,
                     std::span<const double> leave_one_out, double level);

// Resamples clusters. Next() returns how often each cluster occurs in the next resample, [C]. The
// sequence depends on the seed alone.
class ClusterResampler {
 public:
  ClusterResampler(int64_t num_clusters, uint64_t seed);
  std::span<const int32_t> Next();

 private:
  uint64_t state_;
  std::vector<int32_t> counts_;
};

}  // namespace tandem::offpolicy
