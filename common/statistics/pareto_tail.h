// ParetoTail: how heavy the upper tail of the importance weights is: the shape k of a generalised
// Pareto distribution fitted to the largest of them. Pure.
//
// k < 0.5: the variance of the weights is finite. k >= 0.7: means of weights do not settle at any
// sample size that is to be had, and neither ESS nor chi-square is worth printing (Vehtari,
// Simpson, Gelman, Yao and Gabry, "Pareto smoothed importance sampling", JMLR 2024; the fit is
// Zhang and Stephens 2009 with their weakly informative prior).
#ifndef TANDEM_COMMON_STATISTICS_PARETO_TAIL_H_
#define TANDEM_COMMON_STATISTICS_PARETO_TAIL_H_

#include <vector>

namespace tandem::offpolicy {

inline constexpr double kHeavyTail = 0.7;

// Of positive finite weights; the tail is the largest ceil(min(N / 5, 3 sqrt N)). NaN where there
// is no tail to fit: fewer than 5 such values, or all of them equal. Reorders `weights`.
double ParetoTailIndex(std::vector<double>& weights);

// The fit alone: exceedances > 0 over some threshold, sorted, at least 5.
double FitParetoShape(const std::vector<double>& exceedances);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_STATISTICS_PARETO_TAIL_H_
