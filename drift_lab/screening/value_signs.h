// What single values tell: missing ones, numbers that stand for "no value" (0, 1, -9999, -inf),
// values that no log-prob has, and the last value of rows. Pure.
#pragma once

#include <vector>

#include "drift_lab/records/records.h"
#include "drift_lab/screening/sign.h"
#include "drift_lab/screening/token_pairs.h"

namespace tandem::drift {

// Looks at the values of both sides. Sets those of `pairs` that stand for "no value" to NaN, so that
// no later test takes them for log-probs; each sign says how many.
// Ids: missing_values, nan_values, probabilities, negated, positive_values, sentinel_values,
// zero_values, last_value_zero, end_token, stop_tokens, prompt_values.
std::vector<Sign> ValueSigns(const Records& records, TokenPairs* pairs);

}  // namespace tandem::drift
