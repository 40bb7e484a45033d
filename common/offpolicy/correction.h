// Correction: how much each sampled token counts when the policy that sampled it is not the one the
// update starts from (arrow 6). Pure functions over tensors; nothing here carries a gradient.
//
//   delta[t] = log pi_proximal - log pi_behaviour
//   weight[t] = min(max_weight, exp(clamp(delta, -20, 20)))      token_tis
//
// A token is kept when both log-probs are finite and no filter refuses its completion. Tokens that
// are not kept have weight 0 and leave the loss; `denominator` says whether they leave its divisor
// too.
#ifndef TANDEM_COMMON_OFFPOLICY_CORRECTION_H_
#define TANDEM_COMMON_OFFPOLICY_CORRECTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/offpolicy/correction_options.h"

namespace tandem::offpolicy {

struct Correction {
  at::Tensor weight;             // [T] float32; 0 where not kept
  at::Tensor kept;               // [T] bool
  at::Tensor proximal_logprobs;  // [T] float32: what the ratio's clip is centred on; finite
  at::Tensor raw_weight;         // [T] float32: exp(delta), only clamped; 1 where not kept
  int64_t num_capped = 0;        // kept tokens with exp(delta) > max_weight
  int64_t num_nonfinite = 0;     // trained tokens with a log-prob that is not finite
  int64_t num_rejected = 0;      // trained tokens that are not kept, those included
};

// All [T]: log-probs float32, loss_mask bool, completion int64 (numbers the completion of each
// token; only read where the mask is true). Gradients of the inputs are cut.
//   decoupled     as above
//   bypass        proximal := behaviour; weight is exactly 1; no filter
//   measure_only  weight is exactly 1; no filter; the clip is centred on the proximal policy
//   INVALID_ARGUMENT  a shape or dtype differs
absl::StatusOr<Correction> ComputeCorrection(const at::Tensor& proximal_logprobs,
                                             const at::Tensor& behaviour_logprobs,
                                             const at::Tensor& loss_mask,
                                             const at::Tensor& completion,
                                             const CorrectionOptions& options);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_OFFPOLICY_CORRECTION_H_
