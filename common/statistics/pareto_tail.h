// ParetoTail: how heavy the upper tail of the importance weights is, as the shape k of a
// generalised Pareto distribution fitted to the largest weights. Pure.
//
// k < 0.5: the variance of the weights is finite. k >= 0.7: means of weights do not converge at any
// practical sample size, and neither ESS nor chi-square is meaningful (Vehtari, Simpson, Gelman,
// Yao and Gabry, "Pareto smoothed importance sampling", JMLR 2024). The fit is that of Zhang and
// Stephens (2009) with the weakly informative prior of the same paper.
#ifndef TANDEM_COMMON_STATISTICS_PARETO_TAIL_H_
#define TANDEM_COMMON_STATISTICS_PARETO_TAIL_H_

#include <vector>

namespace tandem::offpolicy {

inline constexpr double kHeavyTail = 0.7;

// The shape k of positive finite weights. The tail is the largest ceil(min(N / 5, 3 sqrt N)). NaN
// if there is no tail to fit: fewer than 5 such values, or all equal. Reorders `weights`.
double ParetoTailIndex(std::vector<double>& weights);

// The fit alone, for at least 5 sorted exceedances > 0 over a threshold.
double FitParetoShape(const std::vector<double>& exceedances);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_STATISTICS_PARETO_TAIL_H_
