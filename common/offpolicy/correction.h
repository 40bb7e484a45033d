// Correction: how much each sampled token counts when the policy that sampled it differs from the
// policy that the update starts from (stage 6). Pure functions over plain spans in fp64; results
// are numbers, so nothing here carries a gradient. Used by the trainer
// (trainer/loss/correction_tensors.h), by offline replay and by studies on toy policies.
// docs/corrections.md has the sources and says which method to use when. The behaviour policy is
// the rollout policy mu, the proximal policy is PPO's "old policy", and the target policy is the
// current one.
//
//   delta[t]  = log pi_proximal - log pi_behaviour
//   w[t]      = exp(clamp(delta[t], -20, 20))                    token
//             = exp(clamp(sum delta over the completion))        sequence
//             = exp(clamp(mean delta over the completion))       geometric
//   weight[t] = w[t] within the bounds of CorrectionKind
//
// A token is kept when its log-probs are finite, no mask drops it, and no filter rejects its
// completion. Tokens that are not kept have weight 0 and leave the loss; `denominator` says whether
// they leave its divisor too. Sums and means over a completion run over its trained tokens with
// finite log-probs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/offpolicy/correction_options.h"

namespace tandem::offpolicy {

inline constexpr double kMaxLogRatio = 20;  // exp(20) = 5e8, beyond any meaningful ratio

// All [T], parallel.
struct CorrectionInputs {
  std::span<const double> proximal_logprobs;
  std::span<const double> behaviour_logprobs;
  std::span<const uint8_t> mask;        // 1: trained; other tokens are ignored
  std::span<const int64_t> completion;  // index of each token's completion
  std::span<const double> advantages;   // read only with negative_only; else may be empty
};

struct Correction {
  std::vector<double> weight;      // [T]; 0 where not kept
  std::vector<double> raw_weight;  // [T] w before bounds; 1 where not kept
  // [T] log-probs in the denominator of the loss's ratio; 0 where not kept.
  std::vector<double> centre_logprobs;
  std::vector<uint8_t> kept;  // [T]
  int64_t num_capped = 0;     // kept tokens whose weight was moved to a bound
  int64_t num_masked = 0;     // tokens dropped by the mask of a mask kind
  int64_t num_nonfinite = 0;  // trained tokens with a log-prob that is not finite
  int64_t num_rejected = 0;   // trained tokens that are not kept, the former two included
  // The sum of the weights after their bounds and before batch_normalise, over what has a weight of
  // its own (tokens, or completions for the sequence and geometric kinds), and the number of those.
  double weight_sum = 0;
  int64_t num_weights = 0;
};

//   decoupled     as above; the loss is centred on the proximal policy
//   bypass        the loss is centred on the behaviour policy, and weights are exactly 1; filters
//                 use delta as above, and without filters proximal log-probs are not read
//   measure_only  the loss is centred on the proximal policy, and weights are exactly 1; no filters
// batch_normalise averages over `inputs`. If nothing is kept, all weights are 0.
//   INVALID_ARGUMENT  arrays of different lengths
absl::StatusOr<Correction> ComputeCorrection(const CorrectionInputs& inputs,
                                             const CorrectionOptions& options);

// Divides the weights by `divisor`, for batches that are corrected in parts: the divisor is then
// the sum of weight_sum over the sum of num_weights of all parts. A divisor of 0 changes nothing.
void DivideWeights(double divisor, Correction& correction);

}  // namespace tandem::offpolicy
