// Intervals over seeds: few numbers, so Student's t, and a bootstrap that takes whole seeds where
// runs of one seed share their task, their start and their draws.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tandem::drift {

struct Interval {
  double mean = 0;
  double low = 0, high = 0;  // 95 %; both NaN where there is too little to say
};

// mean +- t(.975, n - 1) s / sqrt(n). NaN bounds for fewer than two values.
Interval StudentInterval(std::span<const double> values);

// `statistic` of how often each of `num_clusters` clusters counts. `mean` is the statistic with
// every cluster once, the bounds are the 2.5 and 97.5 % quantiles over 2000 draws of num_clusters
// clusters with replacement. Draws whose statistic is NaN are left out. A function of its
// arguments.
Interval ClusterBootstrap(int num_clusters,
                          const std::function<double(std::span<const int>)>& statistic);

}  // namespace tandem::drift
