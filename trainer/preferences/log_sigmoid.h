// The logistic function and its logarithm without overflow: exp is taken of negative numbers only.
// All losses of this folder use them. Pure.
#pragma once

#include <algorithm>
#include <cmath>

namespace tandem::trainer {

// 1 / (1 + e^-x).
inline double Sigmoid(double x) {
  const double small = std::exp(-std::abs(x));
  return (x >= 0 ? 1 : small) / (1 + small);
}

// log(1 / (1 + e^-x)); about x for very negative x, where the logarithm of Sigmoid would be
// -infinity.
inline double LogSigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

}  // namespace tandem::trainer
