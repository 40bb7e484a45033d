// Quantiles and tail probabilities for intervals and tests. Pure, thread-safe.
#pragma once

#include <cstdint>
#include <vector>

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

// ParetoTail: how heavy the upper tail of the importance weights is, as the shape k of a
// generalised Pareto distribution fitted to the largest weights. Pure.
//
// k < 0.5: the variance of the weights is finite. k >= 0.7: means of weights do not converge at any
// practical sample size, and neither ESS nor chi-square is meaningful (Vehtari, Simpson, Gelman,
// Yao and Gabry, "Pareto smoothed importance sampling", JMLR 2024). The fit is that of Zhang and
// Stephens (2009) with the weakly informative prior of the same paper.

inline constexpr double kHeavyTail = 0.7;

// The shape k of positive finite weights. The tail is the largest ceil(min(N / 5, 3 sqrt N)). NaN
// if there is no tail to fit: fewer than 5 such values, or all equal. Reorders `weights`.
double ParetoTailIndex(std::vector<double>& weights);

// The fit alone, for at least 5 sorted exceedances > 0 over a threshold.
double FitParetoShape(const std::vector<double>& exceedances);

}  // namespace tandem::offpolicy
