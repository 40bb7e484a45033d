// Where delta is large: in a few tokens, in some rows, late in rows, in long rows, at the first
// token, in later steps, in tokens of older versions. A pattern says where to look and names no
// cause. Pure. Wants pairs whose values are at the right tokens.
//
// Uncertain tokens differ more than certain ones whatever the cause, so sizes are compared as r =
// abs(delta) / (the mean of abs(delta) over tokens of about the same log-prob).
#pragma once

#include <cstdint>
#include <vector>

#include "drift_lab/records/records.h"
#include "drift_lab/screening/sign.h"
#include "drift_lab/screening/token_pairs.h"

namespace tandem::drift {

// [M] r of each token; NaN where a side has no value.
std::vector<float> RelativeSizes(const TokenPairs& pairs);

// Ids: few_tokens, some_rows, position, first_token, length, steps, staleness.
std::vector<Sign> PatternSigns(const Records& records, const TokenPairs& pairs, uint64_t seed);

}  // namespace tandem::drift
