// PolicyObjective: the policy term of the loss and its exact derivative (stage 7). Pure functions
// over plain spans in fp64, so that the trainer (trainer/loss/policy_loss.h), offline replay and
// studies on toy policies share one implementation. docs/corrections.md has the sources and says
// which objective to use when.
//
//   r = exp(clamp(log pi_target - log pi_centre, -20, 20)); A is the advantage, w the weight of the
//   correction; the centre is the proximal policy, or the behaviour policy in mode bypass
//
// Value of a token:
//   clip     -w min(r A, clip(r, 1 - low, 1 + high) A); with dual_clip c, A < 0: at most -w c A
//   gspo     the same with s = exp(mean over the completion of log r) in place of r
//   sapo     -w A (4 / tau) sigmoid(tau (r - 1)); tau by the sign of A
//   m2po     -w A r, or 0 for tokens that its mask drops: among tokens with A > 0, r > 1 or
//            A < 0, r < 1, those with the largest (log r)^2, until the mean of the rest is at
//            most m2po_max (the paper, algorithm 1)
//   m2po_clip  -w A r, clipped at e^tau (A > 0) and e^-tau (A < 0), with the tau at which the mean
//            of min((log r)^2, tau^2) over the same tokens is m2po_max; no clip where the mean is
//            below it anyway (the authors' repository, compute_m2po_policy_loss)
//   cispo    -w sg(min(r, max)) A log pi_target
//   topr     -w sg(A >= 0 ? 1 : min(W, 1)) A log pi_target,   W = prod over the completion of r
//   vespo    -w sg(W^k e^(lambda (1 - W))) A log pi_target;   k, lambda by the sign of A
//   penalty  -w (r A - beta (r - 1 - log r)); beta = penalty_coefficient, and the bracket is an
//            unbiased estimate of KL(centre || target) on the centre's tokens
//   policy_gradient  -w A log pi_target: no ratio. For imitation (A = 1) the cross entropy
//   dppo_tv  -w sg(min(r, 20)) A log pi_target, or 0 where its mask drops the token: p_target has
//            moved from p_centre in the direction of A, by more than max
//   dppo_kl  the same with a move of KL(centre || target) > max, of the token against the rest
//
// sg(x): x is detached, i.e. a number without a gradient. Masked and clipped tokens still count in
// the denominator, as with PPO's clip; only the correction removes tokens from it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/offpolicy/objective_options.h"

namespace tandem::offpolicy {

// All [T], parallel. Only tokens with `kept` are read.
struct ObjectiveInputs {
  std::span<const double> target_logprobs;
  std::span<const double> centre_logprobs;  // from the correction; finite
  std::span<const double> weight;           // from the correction
  std::span<const double> advantages;
  std::span<const uint8_t> kept;
  std::span<const int64_t> completion;  // index of each token's completion
  // For m2po and m2po_clip: the SecondMomentCutoff of a batch that is larger than this call.
  // Without it, the batch is this call.
  std::optional<double> second_moment_cutoff = {};
};

struct Objective {
  std::vector<double> value;  // [T]; 0 where not kept
  // [T]: derivative of the sum of all values by log pi_target[t]; 0 where not kept. Since every
  // scale of ComputeLossScales is one value per completion, slope * scale is the derivative of the
  // scaled sum.
  std::vector<double> slope;
  // Tokens for which a bound was active, by its side: a clip (counted as in PPO), a ceiling (high),
  // or a mask (high if A > 0, else low). Soft gates (sapo, vespo) have none.
  int64_t num_clip_low = 0, num_clip_high = 0, num_dual_clip = 0;
};

// A NaN among the target log-probs gives values that are NaN; the trainer then skips the update.
// The kind is not kPreference, whose loss is of pairs (trainer/loss/pair_objective.h).
Objective ComputeObjective(const ObjectiveInputs& inputs, const ObjectiveOptions& options);

// m2po for a batch that comes in parts: append the squares of all parts, then compute the cutoff.
// Tokens on which a clip could act are dropped when their square is above the cutoff. The cutoff is
// half way between the last square that stays and the first that goes, so that a log-prob computed
// twice with different rounding stays on its side. For m2po_clip the cutoff is tau^2, and tokens
// above it are clipped. It is infinite if no token changes.
void AppendSecondMoments(const ObjectiveInputs& inputs, std::vector<double>& squares);
double SecondMomentCutoff(std::vector<double> squares, const ObjectiveOptions& options);

// LossScales: the factor of each token in the sum of a loss, and the divisor of that sum (stage 7,
// shared with offline replay). Pure.
//
//   kToken     scale 1,                            denominator: tokens
//   kSequence  scale 1 / tokens of its completion, denominator: completions with tokens
//   kConstant  scale 1,                            denominator: completions x constant_length
struct LossScales {
  std::vector<double> scale;  // [T]; 0 for tokens that do not count; else equal in a completion
  double denominator = 0;     // of this call; sums over microbatches and ranks are meaningful
};

// `counted` [T] marks the tokens that count in the divisor (kept ones, or all trained ones).
// `completion` [T] is the index of each token's completion; completions are whole within one call.
// If nothing is counted, the denominator is 0, except that kConstant's is the same as always.
// Whether an update is made does not depend on the denominator: without a kept token there is none
// (train_step.h).
LossScales ComputeLossScales(std::span<const uint8_t> counted, std::span<const int64_t> completion,
                             int64_t num_completions, const ObjectiveOptions& options);

}  // namespace tandem::offpolicy
