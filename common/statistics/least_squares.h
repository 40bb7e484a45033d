// Robust slopes: how much of a direction is in a residual, when some tokens have quite another
// reason. Pure.
#ifndef TANDEM_COMMON_STATISTICS_LEAST_SQUARES_H_
#define TANDEM_COMMON_STATISTICS_LEAST_SQUARES_H_

#include <vector>

namespace tandem::drift {

// b that minimises sum w (r - b d)^2 with Cauchy weights w = 1 / (1 + (e / 3m)^2), e = r - b d of
// the round before and m the median of abs(e); tokens where either is not finite are left out. 0
// without a direction.
double FitSlope(const std::vector<double>& direction, const std::vector<double>& residual);

// Correlation of the two through the origin: sum d r / sqrt(sum d^2 sum r^2), over tokens where
// both are finite; 0 where either vanishes.
double Alignment(const std::vector<double>& direction, const std::vector<double>& residual);

}  // namespace tandem::drift

#endif  // TANDEM_COMMON_STATISTICS_LEAST_SQUARES_H_
