// What the distributions tell: a support that one side cut off, a temperature, and draws that do not
// follow what is recorded. Pure. Every function wants pairs whose values are at the right tokens.
#pragma once

#include <cstdint>
#include <string>

#include "drift_lab/records/records.h"
#include "drift_lab/screening/sign.h"
#include "drift_lab/screening/token_pairs.h"

namespace tandem::drift {

// What a side says of its filters and bans, as "top_k 20, top_p 0.9"; empty: none.
std::string ClaimedFilters(const SideClaims& side);

// Id: truncation. Whatever the two policies are, the mean of w = e^delta over the behaviour's draws
// is 1 where the proximal policy puts its mass on tokens that can be drawn. It is the retained
// probability mass where the behaviour policy left tokens out (top-k, top-p, min-p, a ban) and the
// proximal policy did not, and delta is then at most 0 but for rounding.
Sign TruncationSign(const Records& records, const TokenPairs& pairs, uint64_t seed);

// Id: temperature. If log behaviour = beta * log proximal - log Z(context), beta is the proximal
// temperature over the behaviour temperature. With the most probable tokens of both sides, beta is
// the slope of differences within a context, in which Z cancels. With an entropy H, delta is
// regressed on log proximal, H and H^2 (to the first order delta = (1 - beta) (log proximal + H)).
// With neither, delta against log proximal makes a suspicion at most.
Sign TemperatureSign(const Records& records, const TokenPairs& pairs, uint64_t seed);

// Id: draws. With x = -log p - H(p) of the token drawn, the mean of x is 0 given the context if the
// token was drawn from p: z = sum x / sqrt(sum x^2) is standard normal. Without an entropy, a mean of
// min(w, 3) above 1 shows draws from another distribution; below, it tells nothing.
Sign DrawsSign(const Records& records, const TokenPairs& pairs, uint64_t seed);

// Id: raw_logprobs. Whether the log-probs are those before temperature and filters.
Sign RawSign(const Records& records, const TokenPairs& pairs);

}  // namespace tandem::drift
