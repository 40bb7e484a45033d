#include "common/statistics/distributions.h"

#include <boost/math/distributions/beta.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tandem::offpolicy {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr size_t kLeastTail = 5;

// mean(log(1 - b x)), which is -k for the b of the true distribution.
double MeanLog(double b, const std::vector<double>& exceedances) {
  double sum = 0;
  for (const double x : exceedances) sum += std::log1p(-b * x);
  return sum / static_cast<double>(exceedances.size());
}

}  // namespace

double NormalCdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

double NormalQuantile(double p) {
  if (p <= 0) return -kInfinity;
  if (p >= 1) return kInfinity;
  return boost::math::quantile(boost::math::normal(), p);
}

double StudentQuantile(double p, double degrees) {
  return boost::math::quantile(boost::math::students_t(degrees), p);
}

ShareInterval BinomialInterval(int64_t successes, int64_t trials, double level) {
  const double k = static_cast<double>(successes), n = static_cast<double>(trials);
  const double tail = (1 - level) / 2;
  ShareInterval interval;
  if (successes > 0) {
    interval.low = boost::math::quantile(boost::math::beta_distribution<>(k, n - k + 1), tail);
  }
  if (successes < trials) {
    interval.high = boost::math::quantile(boost::math::beta_distribution<>(k + 1, n - k), 1 - tail);
  }
  return interval;
}

ShareInterval JeffreysInterval(int64_t successes, int64_t trials, double level) {
  const double k = static_cast<double>(successes), n = static_cast<double>(trials);
  const boost::math::beta_distribution<> posterior(k + 0.5, n - k + 0.5);
  const double tail = (1 - level) / 2;
  ShareInterval interval;
  if (successes > 0) interval.low = boost::math::quantile(posterior, tail);
  if (successes < trials) interval.high = boost::math::quantile(posterior, 1 - tail);
  return interval;
}

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
