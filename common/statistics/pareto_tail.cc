#include "common/statistics/pareto_tail.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::offpolicy {
namespace {

constexpr size_t kLeastTail = 5;

// mean(log(1 - b x)), which is -k for the b of the true distribution.
double MeanLog(double b, const std::vector<double>& exceedances) {
  double sum = 0;
  for (const double x : exceedances) sum += std::log1p(-b * x);
  return sum / static_cast<double>(exceedances.size());
}

}  // namespace

// Zhang and Stephens (2009): in their sign convention the density is (1/sigma) (1 - k x /
// sigma)^(1/k - 1), with b = k / sigma. For a given b, the best k has a closed form, so the
// likelihood is a function of b alone. b is estimated by its posterior mean over a grid of
// quantiles of a prior that the largest value and the first quartile set; k follows from it. The
// last line shrinks k towards 0.5 with the weight of ten observations, as Vehtari et al. do to
// stabilise small samples. The returned k has the opposite sign: positive for heavy tails.
double FitParetoShape(const std::vector<double>& exceedances) {
  const auto n = static_cast<double>(exceedances.size());
  const double quartile = exceedances[static_cast<size_t>(n / 4 + 0.5) - 1];
  const int grid = 30 + static_cast<int>(std::sqrt(n));
  std::vector<double> b(grid), log_likelihood(grid);
  for (int i = 0; i < grid; ++i) {
    b[i] = 1 / exceedances.back() + (1 - std::sqrt(grid / (i + 0.5))) / (3 * quartile);
    const double k = MeanLog(b[i], exceedances);
    log_likelihood[i] = n * (std::log(-b[i] / k) - k - 1);
  }
  const double largest = *std::ranges::max_element(log_likelihood);
  double mass = 0, mean_b = 0;
  for (int i = 0; i < grid; ++i) {
    const double weight = std::exp(log_likelihood[i] - largest);
    mass += weight;
    mean_b += weight * b[i];
  }
  constexpr double kPriorCount = 10, kPriorShape = 0.5;
  return (n * MeanLog(mean_b / mass, exceedances) + kPriorCount * kPriorShape) / (n + kPriorCount);
}

double ParetoTailIndex(std::vector<double>& weights) {
  const auto n = static_cast<double>(weights.size());
  const auto tail = static_cast<size_t>(std::ceil(std::min(0.2 * n, 3 * std::sqrt(n))));
  if (tail < kLeastTail || tail + 1 > weights.size())
    return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(weights);
  const double threshold = weights[weights.size() - tail - 1];
  std::vector<double> exceedances;
  for (size_t i = weights.size() - tail; i < weights.size(); ++i) {
    if (weights[i] > threshold) exceedances.push_back(weights[i] - threshold);
  }
  if (exceedances.size() < kLeastTail || exceedances.front() == exceedances.back()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return FitParetoShape(exceedances);
}

}  // namespace tandem::offpolicy
