// Tilt: the family mu(s) ~ p e^(s d) of a distribution p and a direction d over the vocabulary, and
// the s at which KL(mu || p) has a wanted size, so that gaps of different kinds can be compared at
// equal KL.
//
//   KL(s) = s E_s[d] - log sum_a p(a) e^(s d(a)),   dKL/ds = s Var_s(d),   s >= 0
//
// KL grows with s towards -log p(tokens with the largest d), its least upper bound.
#pragma once

#include "drift_lab/phase/toy/policy.h"

namespace tandem::drift {

struct Tilted {
  Distribution logprobs;
  double scale = 0;  // s
  double kl = 0;     // what was reached: under `kl` where the bound of the direction is
};

// mu(s) itself.
Tilted TiltBy(const Distribution& logprobs, const Distribution& direction, double scale);

// mu(s) with KL(mu || p) = kl to within 1e-6 of it, or with the largest s tried (s times the spread
// of d is 1e4: what is not among the largest d is then never drawn) where the direction cannot
// reach it. kl 0, or a direction that is constant, gives p.
Tilted TiltToKl(const Distribution& logprobs, const Distribution& direction, double kl);

}  // namespace tandem::drift
