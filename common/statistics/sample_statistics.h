// Statistics of a sample of numbers: mean, spread, quantile and a robust slope. Sums are taken in
// order, so that reports have the same bits every time. Pure.
#pragma once

#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace tandem::offpolicy {

inline double Mean(std::span<const double> values,
                   double empty_value = std::numeric_limits<double>::quiet_NaN()) {
  if (values.empty()) return empty_value;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The sum of squared distances from the mean. Divided by n it is the variance of a population;
// divided by n - 1 it is the estimate from a sample.
inline double SquaredDeviations(std::span<const double> values) {
  const double mean = Mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return squares;
}

// The quantile `p` in [0, 1] of sorted values, interpolated linearly between order statistics.
double SortedQuantile(std::span<const double> sorted, double p);

// How much of a direction is in a residual when some tokens have quite a different cause: the b
// that minimises sum w (r - b d)^2 with Cauchy weights w = 1 / (1 + (e / 3m)^2), where e = r - b d
// in the previous round and m is the median of abs(e). Tokens where either is not finite are left
// out. 0 if the direction is 0.
double FitSlope(const std::vector<double>& direction, const std::vector<double>& residual);

// Correlation through the origin: sum d r / sqrt(sum d^2 sum r^2), over tokens where both are
// finite; 0 if either is 0.
double Alignment(const std::vector<double>& direction, const std::vector<double>& residual);

}  // namespace tandem::offpolicy
