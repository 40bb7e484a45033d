// PolicyLoss: the scalar whose gradient changes the weights (arrow 7): a table of small pure
// functions and the one that puts them together. Element t of every tensor is about token t given
// those before.
//
//   r   = pi_target / pi_proximal                                     carries the gradient
//   L_t = -w min(r A, clip(r, 1 - eps_low, 1 + eps_high) A)           A: advantage, w: correction
//   weight L   = sum_t scale_t (L_t + kl_coefficient KL_t) / denominator
//
// `scale` and `denominator` are of the whole minibatch (LossScales), never of a microbatch or rank:
// a mean of means weighs tokens by where they happened to stand. The division is left to the
// optimizer.
#ifndef TANDEM_TRAINER_POLICY_LOSS_H_
#define TANDEM_TRAINER_POLICY_LOSS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "trainer/policy_loss_options.h"

namespace tandem::trainer {

// exp(clamp(target - proximal, -20, 20)): the exponent stays where float32 has values.
at::Tensor PolicyRatio(const at::Tensor& target_logprobs, const at::Tensor& proximal_logprobs);

// -w min(r A, clip(r) A); with dual_clip c, for A < 0, at most -w c A.
at::Tensor ClippedSurrogate(const at::Tensor& ratio, const at::Tensor& advantages,
                            const at::Tensor& weight, const PolicyLossOptions& options);

// The estimator named in the options, exponent clamped as above. With kl_ratio_weighted it is
// multiplied by rho = w r, through which k1 and k3 are differentiated and k2 is not: then all three
// have the gradient of KL(target || reference) on tokens the behaviour policy drew.
at::Tensor ReferenceKl(const at::Tensor& target_logprobs, const at::Tensor& reference_logprobs,
                       const at::Tensor& rho, const PolicyLossOptions& options);

// Per-token factors and what one completion adds to the denominator:
//   kToken     scale 1,                     denominator: tokens
//   kSequence  scale 1 / tokens of the completion, denominator: completions with tokens
//   kConstant  scale 1,                     denominator: completions x constant_length
// `counted` [T] bool: the tokens that count in the divisor (kept ones, or all trained ones);
// `completion` [T] int64. Completions are whole within one call.
struct LossScales {
  at::Tensor scale;        // [T] float32; 0 where nothing counts
  double denominator = 0;  // this call's part: parts add up over microbatches and ranks
};
LossScales ComputeLossScales(const at::Tensor& counted, const at::Tensor& completion,
                             int64_t num_completions, const PolicyLossOptions& options);

// All [T] float32 but `kept` (bool). Only target_logprobs may carry a gradient.
struct LossInputs {
  at::Tensor target_logprobs;
  at::Tensor proximal_logprobs;  // of the correction: finite
  at::Tensor weight;             // of the correction
  at::Tensor advantages;
  at::Tensor reference_logprobs;  // undefined without a reference
  at::Tensor kept;                // tokens in the loss
  at::Tensor scale;               // of LossScales
};

// Sums over the kept tokens, before the division. Scalars, [] float32 or float64; only `total`
// carries a gradient.
struct LossSums {
  at::Tensor total;  // policy + kl_coefficient * kl: what backward() is called on
  at::Tensor policy, kl;
  at::Tensor ratio_sum, ratio_max;
  at::Tensor clip_low, clip_high, dual_clip;  // tokens where that bound decided the loss
  at::Tensor k1, k2, k3;                      // of target against reference, unscaled; 0 without
};
LossSums SumPolicyLoss(const LossInputs& inputs, const PolicyLossOptions& options);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_POLICY_LOSS_H_
