// Sums over rows as clusters of a bootstrap. Tokens of one row are not independent, so every
// interval of the screening resamples rows. Pure.
//
// With more than kMostClusters rows, neighbouring rows are added up to that many blocks: every token
// counts, and the time of a bootstrap is bounded.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/statistics/cluster_bootstrap.h"
#include "drift_lab/screening/token_pairs.h"

namespace tandem::drift {

inline constexpr int64_t kMostClusters = 2000;

// Calls add(row, sums) for every row with a drawn token; `add` adds the row's numbers to `sums`
// [num_sums].
template <typename Add>
offpolicy::ClusterSums SumRows(const TokenPairs& pairs, int64_t num_sums, const Add& add) {
  const int64_t rows = pairs.num_rows();
  const int64_t per_block = (rows + kMostClusters - 1) / kMostClusters;
  offpolicy::ClusterSums clusters{.num_sums = num_sums};
  std::vector<double> sums(static_cast<size_t>(num_sums));
  for (int64_t row = 0; row < rows; ++row) {
    if (pairs.length_of(row) > 0) add(row, std::span<double>(sums));
    if ((row + 1) % per_block != 0 && row + 1 != rows) continue;
    clusters.Add(sums);
    sums.assign(sums.size(), 0.0);
  }
  return clusters;
}

// The interval of sums[numerator] / sums[denominator].
inline offpolicy::Interval RatioInterval(const offpolicy::ClusterSums& clusters, size_t numerator,
                                         size_t denominator, double level, uint64_t seed) {
  const offpolicy::Statistic statistics[] = {offpolicy::RatioOfSums(numerator, denominator)};
  return offpolicy::BootstrapIntervals(clusters, statistics,
                                       {.replicates = 1000, .level = level, .seed = seed})[0];
}

}  // namespace tandem::drift
