// Shapley shares over all cells of independent factors, with the bounds of order (drift.md section
// 3). Pure.
//
// Cell `c` is a set of factors, bit i being factor i; value[c] is what is measured when those
// factors stand as in the engine and the others as in the trainer. value[0] is the agreement of
// equals.
//   share of i = sum over S without i of |S|! (k - 1 - |S|)! / k! (value[S + i] - value[S])
// Shares add up to value[all] - value[0] whatever the interactions are (Shapley 1953).
#pragma once

#include <vector>

namespace tandem::drift {

// Weight of value[c] in the share of factor `i` of `k`: a share is the weighted sum over cells, so
// a share of means is the mean of shares, and intervals come from the cells' sums.
std::vector<double> ShapleyWeights(int k, int i);  // [2^k]

// The bounds of order, as weights of the cells: factor `i` switched on before all others, and after
// them. They differ where factors interact; when both have one sign, the factor's direction does
// not depend on the order.
std::vector<double> AloneWeights(int k, int i);  // [2^k]
std::vector<double> LastWeights(int k, int i);   // [2^k]

}  // namespace tandem::drift
