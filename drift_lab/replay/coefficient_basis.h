// CoefficientBasis: the few directions that span the coefficients of many corrections on one
// completion. Pure.
//
// The gradient is linear in the coefficients, so one backward pass per direction serves all
// corrections. Few directions are enough: corrections that weight whole completions share one
// direction with no correction at all, and token weights add a second one until a bound acts.
#pragma once

#include <span>
#include <vector>

namespace tandem::drift {

// The largest residue of a row outside the directions, relative to the row. It is two orders of
// magnitude below what an fp32 gradient and its sketch resolve.
inline constexpr double kBasisTolerance = 1e-5;

struct CoefficientBasis {
  std::vector<std::vector<double>> directions;  // [R][T] orthonormal; none when all rows are 0
  std::vector<std::vector<double>> weights;     // [M][R]: row m = sum_r weights[m][r] directions[r]
};

// `rows` [M][T] are the finite coefficients of each correction. Gram-Schmidt, pivoted: the next
// direction is the residue of the row that is described worst, until the residue of every row is at
// most `tolerance` times its length.
CoefficientBasis SpanOf(const std::vector<std::span<const double>>& rows,
                        double tolerance = kBasisTolerance);

}  // namespace tandem::drift
