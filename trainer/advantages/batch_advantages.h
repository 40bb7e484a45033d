// BatchAdvantages: what becomes of advantages once the passes of a batch are made: the KL to the
// frozen reference policy as part of the reward (loss.kl_place), a critic's estimates, and
// whitening. Stands between stages 5 and 6, since it needs log-probs and values. Pure; free of
// LibTorch. Used by train_step.cc.
//
//   d_t = log pi_proximal - log pi_reference                                    (the estimator k1)
//   reward        A_it = A_i - (cost_i - mean of the group's costs), cost_i = c sum_t d_t
//   token_reward  the reward of token t is less by c d_t: a critic reads it so, advantage none
//                 becomes the return from t on, and other kinds lose c sum over s >= t of
//                 gamma^(s-t) d_s
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

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/advantages/advantage_options.h"
#include "trainer/experience/experience_batch.h"

namespace tandem::trainer {

// What the passes of a batch found out, by microbatch, [T] each; no elements where nobody needs it.
struct BatchSignals {
  std::vector<std::span<const float>> proximal, reference;  // log-probs
  std::vector<std::span<const float>> values;  // of the state before each trained token
  std::span<const float> bootstraps;           // [completions] of the state after its last token
};

struct KlInReward {
  double coefficient = 0;  // 0: none; else `proximal` and `reference` are there
  bool per_token = false;  // kl_place token_reward
};

// What a critic says, over the trained tokens of the batch.
struct CriticTargets {
  std::vector<std::vector<float>> targets;  // [microbatch][T] what its values are trained on
  double value_mean = 0, target_mean = 0;
  double explained_variance = 0;  // NaN where all targets are equal
};

struct BatchAdvantages {
  double kl_penalty = 0;  // mean cost of a trained completion
  CriticTargets critic;   // empty without one
};

// Replaces the advantages in `batch`, as far as the options say. A token whose d_t is not finite
// costs nothing. Truncated completions go on with their bootstrap, others with 0.
BatchAdvantages SetBatchAdvantages(const BatchSignals& signals, const KlInReward& kl,
                                   const AdvantageOptions& options, ExperienceBatch& batch);

// (A - mean) / sqrt(variance + 1e-8) over all trained tokens of the batch, in every row; the
// variance is that of a sample, as in TRL's and verl's masked_whiten. One token keeps 0.
void WhitenAdvantages(ExperienceBatch& batch);

}  // namespace tandem::trainer
