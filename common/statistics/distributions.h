// Quantiles and tail probabilities for intervals and tests. Pure, thread-safe.
#ifndef TANDEM_COMMON_STATISTICS_DISTRIBUTIONS_H_
#define TANDEM_COMMON_STATISTICS_DISTRIBUTIONS_H_

#include <cstdint>

namespace tandem::offpolicy {

double NormalCdf(double z);
double NormalQuantile(double p);  // p in (0, 1); -inf and +inf at 0 and 1

// Quantile of Student's t with `degrees` > 0 degrees of freedom.
double StudentQuantile(double p, double degrees);

// The exact (Clopper-Pearson) interval for a share, given `successes` among `trials`.
struct ShareInterval {
  double low = 0, high = 1;
};
ShareInterval BinomialInterval(int64_t successes, int64_t trials, double level);

// The Jeffreys interval, from Beta(k + 1/2, n - k + 1/2). It covers `level` on average, where the
// exact interval covers more (Brown, Cai and DasGupta 2001, section 3.1.2: the bounds are 0 and 1
// where none or all are successes).
ShareInterval JeffreysInterval(int64_t successes, int64_t trials, double level);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_STATISTICS_DISTRIBUTIONS_H_
