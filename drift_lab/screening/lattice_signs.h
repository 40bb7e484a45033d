// How the numbers were written: values that all lie on the lattice of float16, bfloat16 or of N
// decimals, and logs of another base than e. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "drift_lab/records/records.h"
#include "drift_lab/screening/sign.h"
#include "drift_lab/screening/token_pairs.h"

namespace tandem::drift {

struct Lattice {
  std::string name;  // "bfloat16", "float16", "decimal:3"; empty: none
  // The mean error of rounding to it at the values, in nats.
  double mean_error = 0;
  int64_t num_values = 0;
};

// The coarsest lattice that holds all of `values`. Looks at no more than 200,000 of them, evenly
// spread. float32 values lie on a lattice of 2^-13 of the density or less by chance, so that eight
// values are enough.
Lattice LatticeOf(std::span<const float> values);

// Id: rounding, for each side.
std::vector<Sign> RoundingSigns(const Records& records, const TokenPairs& pairs);

// Id: log_base. Tests that one side is the other times a constant: 1 / ln 2, 1 / ln 10, or the
// inverse of one of them. If it is shown, `value` is the factor's estimate, and no other test of the
// sides means anything until they are in one base.
Sign LogBaseSign(const TokenPairs& pairs);

}  // namespace tandem::drift
