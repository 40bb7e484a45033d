// Correction: how much each sampled token counts when the policy that sampled it is not the one the
// update starts from (arrow 6). Pure functions over plain spans in fp64; results are numbers, so
// nothing here carries a gradient. Used by the trainer (trainer/loss/correction_tensors.h), by offline
// replay and by studies on toy policies. docs/corrections.md has sources and what to use when.
//
//   delta[t]  = log pi_proximal - log pi_behaviour
//   w[t]      = exp(clamp(delta[t], -20, 20))                    token
//             = exp(clamp(sum delta over the completion))        sequence
//             = exp(clamp(mean delta over the completion))       geometric
//   weight[t] = w[t] within the bounds of CorrectionKind
//
// A token is kept when its log-probs are finite, no mask drops it, and no filter refuses its
// completion. Tokens that are not kept have weight 0 and leave the loss; `denominator` says whether
// they leave its divisor too. Sums and means over a completion are over its trained tokens with
// finite log-probs.
#ifndef TANDEM_COMMON_OFFPOLICY_CORRECTION_H_
#define TANDEM_COMMON_OFFPOLICY_CORRECTION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/offpolicy/correction_options.h"

namespace tandem::offpolicy {

inline constexpr double kMaxLogRatio = 20;  // exp(20) is 5e8: beyond any ratio that means something

// All [T], in parallel.
struct CorrectionInputs {
  std::span<const double> proximal_logprobs;
  std::span<const double> behaviour_logprobs;
  std::span<const uint8_t> mask;        // trained tokens; elsewhere nothing else is read
  std::span<const int64_t> completion;  // numbers the completion of each token
  std::span<const double> advantages;   // only read with negative_only; may be empty without
};

struct Correction {
  std::vector<double> weight;           // [T]; 0 where not kept
  std::vector<double> raw_weight;       // [T]: w, only clamped; 1 where not kept
  std::vector<double> centre_logprobs;  // [T]: what the loss is centred on; 0 where not kept
  std::vector<uint8_t> kept;            // [T]
  int64_t num_capped = 0;               // kept tokens whose weight a bound moved
  int64_t num_masked = 0;               // tokens that the mask of a mask kind dropped
  int64_t num_nonfinite = 0;            // trained tokens with a log-prob that is not finite
  int64_t num_rejected = 0;             // trained tokens that are not kept, those included
  // Within their bounds and before batch_normalise: sum over what has a weight of its own (tokens,
  // or completions for the sequence and geometric kinds), and how many those are.
  double weight_sum = 0;
  int64_t num_weights = 0;
};

//   decoupled     as above; centred on the proximal policy
//   bypass        centred on the behaviour policy; weight is exactly 1; filters look at delta as
//                 above, and without any the proximal log-probs are not read
//   measure_only  centred on the proximal policy; weight is exactly 1; no filter
// With batch_normalise the batch is what is in `inputs`. When nothing is kept all of weight is 0.
//   INVALID_ARGUMENT  arrays that do not run in parallel
absl::StatusOr<Correction> ComputeCorrection(const CorrectionInputs& inputs,
                                             const CorrectionOptions& options);

// Divides the weights by `divisor`, for batches that are corrected in parts: the divisor is then
// the sum of weight_sum over that of num_weights. A divisor of 0 changes nothing.
void DivideWeights(double divisor, Correction& correction);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_OFFPOLICY_CORRECTION_H_
