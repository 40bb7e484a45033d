// KlReward: the KL to the frozen reference policy as part of the reward (loss.kl_place: reward)
// instead of the loss. Stands between stages 5 and 6, since it needs both policies' log-probs.
//
//   cost_i = kl_coefficient sum_t d_t          over the trained tokens of completion i
//   d_t    = log pi_proximal - log pi_reference                                  (the estimator k1)
//   A'_i   = A_i - (cost_i - mean of the group's costs)          ChargedAdvantages of advantages.h
//
// Only the estimator k1 is right here. A policy gradient with the charge -c sum_t d_t has the
// expectation -c grad KL(pi || reference), because E[grad log pi] = 0; with k3 it is -c (grad KL(pi
// || reference) - grad KL(reference || pi)), which vanishes to first order where the policies are
// close and then drives them apart, and with k2 it vanishes likewise
// (estimator_enumeration_test.cc).
//
// The proximal policy is used in place of the target policy: no gradient flows through it, and the
// mismatch between the engines does not enter the reward. The cost is subtracted after the rewards
// were normalised, as OpenRLHF does (verl subtracts it before): divided by a group's deviation, its
// size would hardly depend on the coefficient where rewards are equal.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "trainer/experience/advantages.h"
#include "trainer/experience/experience_batch.h"

namespace tandem::trainer {

// `proximal` and `reference`: log-probs by microbatch of `batch`, [T] float32 each; a token whose
// d_t is not finite costs nothing. Replaces the advantages in `batch`. Returns the mean of cost_i
// over the trained completions.
double ChargeKl(std::span<const at::Tensor> proximal, std::span<const at::Tensor> reference,
                double kl_coefficient, const AdvantageOptions& advantage, ExperienceBatch& batch);

}  // namespace tandem::trainer
