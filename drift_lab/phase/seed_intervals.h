// Intervals over seeds. There are few, so the interval of a mean is Student's t. Runs of one seed
// share their task, their start and their random numbers, so the bootstrap resamples whole seeds.
#pragma once

#include <functional>
#include <span>

namespace tandem::drift {

struct SeedInterval {
  double mean = 0;
  double low = 0, high = 0;  // 95 %; both NaN if unknown
};

// mean +- t(.975, n - 1) s / sqrt(n). NaN bounds for fewer than two values.
SeedInterval StudentInterval(std::span<const double> values);

// `statistic` is a function of how often each of `num_clusters` clusters (seeds) counts. `mean` is
// the statistic with every cluster once; the bounds are its 2.5 and 97.5 % quantiles over 2000
// resamples with replacement (percentile bootstrap, Efron 1979). Resamples whose statistic is NaN
// are left out. Pure; the resamples are always the same.
SeedInterval BootstrapOverSeeds(int num_clusters,
                                const std::function<double(std::span<const int>)>& statistic);

}  // namespace tandem::drift
