// CoefficientBasis: the few directions in which the coefficients of many corrections lie on one
// completion. The gradient is linear in them, so one backward pass per direction serves all
// corrections: weights of whole completions share a direction with no correction at all, and token
// weights are a second one until a bound acts. Pure.
#pragma once

#include <span>
#include <vector>

namespace tandem::drift {

// What is left of a row outside the directions, relative to the row: two orders below what a
// gradient in fp32 and its sketch resolve.
inline constexpr double kBasisTolerance = 1e-5;

struct CoefficientBasis {
  std::vector<std::vector<double>> directions;  // [R][T] orthonormal; none when all rows are 0
  std::vector<std::vector<double>> weights;     // [M][R]: row m = sum_r weights[m][r] directions[r]
};

// `rows` [M][T]: coefficients of each correction; finite. Gram-Schmidt, the row that is described
// worst first, until every row is within `tolerance` of its length.
CoefficientBasis SpanOf(const std::vector<std::span<const double>>& rows,
                        double tolerance = kBasisTolerance);

}  // namespace tandem::drift
