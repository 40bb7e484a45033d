// Whether the values of the two sides belong to the same tokens: rows that are shifted by a few
// tokens, by their prompt's length or by their padding, and rows with another completion's values.
// Pure.
//
// A row is called shifted only if the two sides are four times nearer at the shift than in place, on
// a quarter of the row at least, where the values vary. The sides then differ by less than what any
// cause other than a shift leaves.
#pragma once

#include <cstdint>
#include <vector>

#include "drift_lab/records/records.h"
#include "drift_lab/screening/sign.h"
#include "drift_lab/screening/token_pairs.h"

namespace tandem::drift {

// Rows whose values are nearer than this on average, in nats, are in place.
inline constexpr double kInPlace = 0.05;

struct Alignment {
  std::vector<Sign> signs;
  // False if rows are shifted or of other completions, or if the sides have nothing in common:
  // tests of delta would compare values of different tokens.
  bool in_place = true;
};

// Looks at 256 rows at most for shifts, and at 400 for exchanged rows; which they are depends on
// `seed`. Ids: shift, prompt_shift, padding_shift, other_rows, unrelated.
Alignment AlignmentSigns(const Records& records, const TokenPairs& pairs, uint64_t seed);

}  // namespace tandem::drift
