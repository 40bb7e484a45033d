// PolicyObjective: the policy term of the loss and its exact slope (arrow 7). Pure functions over
// plain spans in fp64, so that the trainer (trainer/loss/policy_loss.h), offline replay and studies on
// toy policies use one implementation. docs/corrections.md has sources and what to use when.
//
//   r = exp(clamp(log pi_target - log pi_centre, -20, 20)); A advantage; w weight of the
//   correction; the centre is the proximal policy, in mode bypass the behaviour policy
//
// Value of a token:
//   clip     -w min(r A, clip(r, 1 - low, 1 + high) A); with dual_clip c, A < 0: at most -w c A
//   gspo     the same of s = exp(mean over the completion of log r) in the place of r
//   sapo     -w A (4 / tau) sigmoid(tau (r - 1)); tau by the sign of A
//   m2po     -w A r, or 0 for what its mask drops: among tokens with A > 0, r > 1 or A < 0, r < 1
//            those of the largest (log r)^2, until the mean of the rest is at most m2po_max (the
//            paper, algorithm 1)
//   m2po_clip  -w A r, clipped at e^tau (A > 0) and e^-tau (A < 0): the tau at which the mean of
//            min((log r)^2, tau^2) over the same tokens is m2po_max; none where it is below (the
//            authors' repository, compute_m2po_policy_loss)
//   cispo    -w sg(min(r, max)) A log pi_target
//   topr     -w sg(A >= 0 ? 1 : min(W, 1)) A log pi_target,   W = prod over the completion of r
//   vespo    -w sg(W^k e^(lambda (1 - W))) A log pi_target;   k, lambda by the sign of A
//   dppo_tv  -w sg(min(r, 20)) A log pi_target, or 0 where its mask drops the token: p_target has
//            moved from p_centre in the direction of A, by more than max
//   dppo_kl  the same with a move of KL(centre || target) > max, of the token against the rest
//
// sg(x): x is detached, a number. Masked and clipped tokens keep their place in the denominator, as
// with PPO's clip; only the correction takes tokens out of it.
#ifndef TANDEM_COMMON_OFFPOLICY_POLICY_OBJECTIVE_H_
#define TANDEM_COMMON_OFFPOLICY_POLICY_OBJECTIVE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/offpolicy/objective_options.h"

namespace tandem::offpolicy {

// All [T], in parallel. Only tokens with `kept` are read.
struct ObjectiveInputs {
  std::span<const double> target_logprobs;
  std::span<const double> centre_logprobs;  // of the correction: finite
  std::span<const double> weight;           // of the correction
  std::span<const double> advantages;
  std::span<const uint8_t> kept;
  std::span<const int64_t> completion;  // numbers the completion of each token
  // m2po and m2po_clip: what SecondMomentCutoff said of a batch that is larger than this call;
  // absent, the batch is this call.
  std::optional<double> second_moment_cutoff = {};
};

struct Objective {
  std::vector<double> value;  // [T]; 0 where not kept
  // [T]: derivative of the sum of all values by log pi_target[t]; 0 where not kept. Since every
  // scale of loss_scales.h is one value per completion, slope x scale is that of the scaled sum.
  std::vector<double> slope;
  // Tokens where a bound decided, by its side: a clip's (as PPO counts them), a ceiling's (high),
  // or a mask's (high: A > 0, low: else). Soft gates (sapo, vespo) have none.
  int64_t num_clip_low = 0, num_clip_high = 0, num_dual_clip = 0;
};

// A NaN among the target log-probs makes values that are NaN: the trainer skips such an update.
Objective ComputeObjective(const ObjectiveInputs& inputs, const ObjectiveOptions& options);

// m2po over a batch that comes in parts: the squares of all parts go in, and tokens on which a clip
// could act are dropped where theirs is above the result. Half way between the last that stays and
// the first that goes, so that a log-prob computed twice, in other roundings, stays on its side.
// For m2po_clip it is tau^2, and those above are clipped. Infinite where all stay as they are.
void AppendSecondMoments(const ObjectiveInputs& inputs, std::vector<double>& squares);
double SecondMomentCutoff(std::vector<double> squares, const ObjectiveOptions& options);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_OFFPOLICY_POLICY_OBJECTIVE_H_
