// Quantiles and tails of the distributions that intervals and tests are made of. Pure, thread-safe.
#ifndef TANDEM_COMMON_STATISTICS_DISTRIBUTIONS_H_
#define TANDEM_COMMON_STATISTICS_DISTRIBUTIONS_H_

#include <cstdint>

namespace tandem::offpolicy {

double NormalCdf(double z);
double NormalQuantile(double p);  // p in (0, 1); -inf and +inf at 0 and 1

// Student's t with `degrees` > 0 degrees of freedom.
double StudentQuantile(double p, double degrees);

// The exact (Clopper-Pearson) interval for a share of which `successes` of `trials` were seen.
struct ShareInterval {
  double low = 0, high = 1;
};
ShareInterval BinomialInterval(int64_t successes, int64_t trials, double level);

// The Jeffreys interval, Beta(k + 1/2, n - k + 1/2): covers `level` on average, where the exact one
// covers more (Brown, Cai and DasGupta 2001, section 3.1.2: 0 and 1 as bounds where none or all
// were successes).
ShareInterval JeffreysInterval(int64_t successes, int64_t trials, double level);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_STATISTICS_DISTRIBUTIONS_H_
