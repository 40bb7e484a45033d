// Column transforms: what a column would hold if it were written wrongly: logs of another base,
// probabilities, log-probs that a temperature divided, values that stand one token off. The noise of
// a value goes with it. Used by judge.cc. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "drift_lab/referee/residuals.h"

namespace tandem::drift {

struct ColumnTransform {
  const char* cause;
  const char* text;
  std::vector<double> values;  // [M]; NaN where there is none
  TokenSet tokens;             // with the scale and rounding that the values have
};

// `own` [M] are the referee's log-probs under what is claimed, `model` [M] those of the model's own
// distribution, `rows` [M] the rows of the tokens, and `temperature` the one that is claimed.
std::vector<ColumnTransform> ColumnTransforms(std::span<const double> own,
                                              std::span<const double> model,
                                              std::span<const int64_t> rows, const TokenSet& tokens,
                                              double temperature);

}  // namespace tandem::drift
