#include "common/statistics/distributions.h"

#include <boost/math/distributions/beta.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <limits>

namespace tandem::offpolicy {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

}  // namespace tandem::offpolicy
