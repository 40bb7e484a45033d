#include "common/statistics/sample_statistics.h"

#include <algorithm>
#include <cmath>

namespace tandem::offpolicy {
namespace {

constexpr int kRounds = 20;
constexpr double kCauchyMedians = 3;

bool Usable(double d, double r) { return std::isfinite(d) && std::isfinite(r); }

}  // namespace

double SortedQuantile(std::span<const double> sorted, double p) {
  const double rank = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(rank);
  if (below + 1 >= sorted.size()) return sorted.back();
  return sorted[below] + (rank - static_cast<double>(below)) * (sorted[below + 1] - sorted[below]);
}

// Iteratively reweighted least squares. The scale of the weights follows the median absolute error
// of the round before, so that tokens with another cause, whose errors are large, lose their
// influence.
double FitSlope(const std::vector<double>& direction, const std::vector<double>& residual) {
  double slope = 0, scale = 0;
  for (int round = 0; round < kRounds; ++round) {
    double along = 0, squares = 0;
    std::vector<double> errors;
    for (size_t t = 0; t < direction.size(); ++t) {
      const double d = direction[t], r = residual[t];
      if (!Usable(d, r)) continue;
      const double e = (r - slope * d) / scale;
      const double weight = scale > 0 ? 1 / (1 + e * e) : 1;
      along += weight * d * r;
      squares += weight * d * d;
    }
    if (!(squares > 0)) return 0;
    const double next = along / squares;
    for (size_t t = 0; t < direction.size(); ++t) {
      if (Usable(direction[t], residual[t]))
        errors.push_back(std::abs(residual[t] - next * direction[t]));
    }
    const auto middle = errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2);
    std::nth_element(errors.begin(), middle, errors.end());
    scale = kCauchyMedians * *middle;
    if (std::abs(next - slope) <= 1e-12 * std::abs(next)) return next;
    slope = next;
    if (scale == 0) break;
  }
  return slope;
}

double Alignment(const std::vector<double>& direction, const std::vector<double>& residual) {
  double dr = 0, dd = 0, rr = 0;
  for (size_t t = 0; t < direction.size(); ++t) {
    const double d = direction[t], r = residual[t];
    if (!Usable(d, r)) continue;
    dr += d * r;
    dd += d * d;
    rr += r * r;
  }
  return dd > 0 && rr > 0 ? dr / std::sqrt(dd * rr) : 0;
}

}  // namespace tandem::offpolicy
