// The loss of a reward model on pairs: value and exact derivative, in fp64. Pure.
//
// A reward model gives one number per completion. Under the Bradley-Terry model the probability
// that the chosen completion is preferred is sigmoid(r_c - r_r). With d = r_c - r_r - m, where m is
// the margin of the pair (0 if there is none), and e = label_smoothing:
//
//   loss = -(1 - e) log sigmoid(d) - e log sigmoid(-d) + center_rewards_coefficient (r_c + r_r)^2
//
// The margin is that of Llama 2 (Touvron et al. 2023, arXiv 2307.09288, section 3.2.2). The
// centring term holds the mean reward near 0, which the difference leaves free (Eisenstein et al.
// 2023, arXiv 2312.09244).
#pragma once

#include <span>
#include <vector>

#include "common/options/options.h"

namespace tandem::trainer {

struct RewardModelLossOptions {
  double label_smoothing = 0;
  double center_rewards_coefficient = 0;  // 0: off
};
void BindOptions(OptionBinder& binder, RewardModelLossOptions& options);

// All [P], parallel, finite.
struct RewardPairs {
  std::span<const double> chosen, rejected;
  std::span<const double> margins;  // empty: 0
};

// The loss of the batch is the sum of the values divided by its number of pairs; slopes are
// derivatives of the sum. All [P].
struct RewardModelLoss {
  std::vector<double> value;
  std::vector<double> chosen_slope, rejected_slope;  // by the two rewards
};
RewardModelLoss ComputeRewardModelLoss(const RewardPairs& pairs,
                                       const RewardModelLossOptions& options);

}  // namespace tandem::trainer
