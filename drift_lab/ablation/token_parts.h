// TokenParts: the drift of every token, split into the parts of an ablation. Pure.
//
// A part is the difference between two neighbouring steps of the ablation, so for every token the
// parts add up to the whole drift. Between engine and trainer stand k factors that can be switched
// independently. Their parts are Shapley values over all 2^k cells, where cell `c` is the set of
// factors (bit i for factor i) that are as in the engine, the others being as in the trainer:
//
//   share of i = sum over S without i of |S|! (k - 1 - |S|)! / k! (value[S + i] - value[S])
//
// Invariant: the shares add up to value[all] - value[0], whatever the interactions of the factors
// are (Shapley, "A value for n-person games", 1953).
#pragma once

#include <vector>

#include "drift_lab/ablation/ablation.h"
#include "drift_lab/hypotheses/part.h"

namespace tandem::drift {

// The parts in the order of the ablation. For every token their sum is proximal - record, up to
// rounding in fp64.
struct TokenParts {
  std::vector<Part> parts;
  std::vector<std::vector<double>> values;   // [parts][T]
  size_t first_factor = 0, num_factors = 0;  // which of the parts are factors
  // [2^k][T]: the drift of a token with these factors as in the engine and the others as in the
  // trainer; the first is 0. Empty without factors.
  std::vector<std::vector<double>> cells;
};
TokenParts SplitTokens(const Ablation& ablation);

// The weights [2^k] of value[cell] in the share of factor `i` of `k`. A share is linear in the
// cells, so a share of means is the mean of shares, and intervals follow from the cells' sums.
std::vector<double> ShapleyWeights(int k, int i);

// The same for the two extreme orders: factor `i` switched before all others, and after them. The
// two differ where factors interact. If both shares have the same sign, the direction of the factor
// does not depend on the order.
std::vector<double> AloneWeights(int k, int i);  // [2^k]
std::vector<double> LastWeights(int k, int i);   // [2^k]

}  // namespace tandem::drift
