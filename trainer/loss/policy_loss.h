// PolicyLoss: the scalar whose gradient changes the weights (stage 7). Element t of every tensor is
// about token t given those before.
//
//   L = sum_t scale_t (policy_t + kl_coefficient KL_t - entropy_coefficient H_t) / denominator
//
// common/offpolicy/policy_objective.h computes the value of the policy term and its slope; here
// they become a tensor with that value and that gradient. With loss.kind preference they come from
// trainer/loss/pair_objective.h. `scale` and `denominator` belong to the
// whole minibatch (common/offpolicy/policy_objective.h), never to a microbatch or a rank: a mean of
// means would weigh a token by the size of the row that it was packed into. The optimizer does the
// division.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/loss/policy_loss_options.h"
#include "trainer/metrics/step_report.h"

namespace tandem::trainer {

// exp(clamp(target - proximal, -20, 20)): the exponent stays where float32 has values.
at::Tensor PolicyRatio(const at::Tensor& target_logprobs, const at::Tensor& proximal_logprobs);

// The estimator named in the options, exponent clamped as above. With kl_ratio_weighted it is
// multiplied by rho = w r, through which k1 and k3 are differentiated and k2 is not: then all three
// have the gradient of KL(target || reference) on tokens the behaviour policy drew.
at::Tensor ReferenceKl(const at::Tensor& target_logprobs, const at::Tensor& reference_logprobs,
                       const at::Tensor& rho, const PolicyLossOptions& options);

// All [T] float32 but `kept` (bool) and `completion` (int64). Only target_logprobs and entropies may
// carry a gradient.
struct LossInputs {
  at::Tensor target_logprobs;
  at::Tensor entropies;       // of the target policy; read with an entropy_coefficient
  at::Tensor start_logprobs;  // of the weights the step starts from, whatever the loss centres on
  at::Tensor proximal_logprobs;  // of the correction: what the loss is centred on; finite
  at::Tensor weight;             // of the correction
  at::Tensor advantages;
  at::Tensor reference_logprobs;                    // undefined without a reference
  at::Tensor kept;                                  // tokens in the loss
  at::Tensor completion;                            // numbers the completion of each token
  at::Tensor scale;                                 // of LossScales
  std::optional<double> second_moment_cutoff = {};  // of the minibatch, for loss.kind m2po
  double mean_chosen_tokens = 0;                    // of the minibatch, for loss.kind preference
};

// Sums over the kept tokens, before the division. Scalars, [] float32 or float64; only `total`
// carries a gradient.
struct LossSums {
  // policy + kl_coefficient * kl - entropy_coefficient * entropy: what backward() is called on
  at::Tensor total;
  at::Tensor policy, kl;
  at::Tensor ratio_sum, ratio_max;
  at::Tensor k1, k2, k3;  // of target against reference, unscaled; 0 without
  // The sum of r - 1 - log r, r = target / start: an unbiased estimate of KL(proximal || target)
  // on tokens of the proximal policy (k3 of Schulman 2020; approx_kl elsewhere). 0 without
  // start_logprobs.
  double proximal_kl = 0;
  // Tokens where that bound decided the loss (offpolicy::Objective).
  int64_t clip_low = 0, clip_high = 0, dual_clip = 0;
  PairNumbers pairs;  // of loss.kind preference
};
LossSums SumPolicyLoss(const LossInputs& inputs, const PolicyLossOptions& options);

// Appends the squares by which these tokens enter the cutoff of a minibatch that has several
// microbatches (loss.kind m2po).
void AppendSecondMoments(const LossInputs& inputs, std::vector<double>& squares);

}  // namespace tandem::trainer
