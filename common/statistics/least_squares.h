// Robust slopes: how much of a direction is in a residual when some tokens have quite a different
// cause. Pure.
#pragma once

#include <vector>

namespace tandem::drift {

// The b that minimises sum w (r - b d)^2 with Cauchy weights w = 1 / (1 + (e / 3m)^2), where e = r
// - b d in the previous round and m is the median of abs(e). Tokens where either is not finite are
// left out. 0 if the direction is 0.
double FitSlope(const std::vector<double>& direction, const std::vector<double>& residual);

// Correlation through the origin: sum d r / sqrt(sum d^2 sum r^2), over tokens where both are
// finite; 0 if either is 0.
double Alignment(const std::vector<double>& direction, const std::vector<double>& residual);

}  // namespace tandem::drift
