// Mean and spread of a few numbers. They are added in order, so that reports have the same bits
// every time. Pure.
#pragma once

#include <limits>
#include <numeric>
#include <span>

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

}  // namespace tandem::offpolicy
