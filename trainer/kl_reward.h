// KlReward: the KL to the frozen reference policy as part of the reward (loss.kl_place: reward)
// instead of the loss. Stands between arrows 5 and 6, since it needs both policies' log-probs.
//
//   R'_i = R_i - kl_coefficient sum_t KL_t      over the trained tokens of completion i
//
// KL_t is the estimator of policy_loss.h with the proximal policy in the target's place: no
// gradient flows through it, and the mismatch between the engines does not enter the reward.
// Advantages are computed anew from R' within each group (verl's algorithm.use_kl_in_reward does
// the same).
#ifndef TANDEM_TRAINER_KL_REWARD_H_
#define TANDEM_TRAINER_KL_REWARD_H_

#include <ATen/core/Tensor.h>

#include <span>

#include "trainer/advantages.h"
#include "trainer/experience_batch.h"
#include "trainer/policy_loss_options.h"

namespace tandem::trainer {

// `proximal` and `reference`: log-probs by microbatch of `batch`, [T] float32 each; a token whose
// estimate is not finite counts 0. Replaces the advantages in `batch`. Returns the mean of R_i -
// R'_i over the trained completions.
double PenaliseRewards(std::span<const at::Tensor> proximal, std::span<const at::Tensor> reference,
                       const PolicyLossOptions& loss, const AdvantageOptions& advantage,
                       ExperienceBatch& batch);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_KL_REWARD_H_
