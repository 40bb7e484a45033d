// LossScales: the factor of each token in the sum of a loss, and the divisor of that sum (stage 7,
// shared with offline replay). Pure.
//
//   kToken     scale 1,                            denominator: tokens
//   kSequence  scale 1 / tokens of its completion, denominator: completions with tokens
//   kConstant  scale 1,                            denominator: completions x constant_length
#ifndef TANDEM_COMMON_OFFPOLICY_LOSS_SCALES_H_
#define TANDEM_COMMON_OFFPOLICY_LOSS_SCALES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/offpolicy/objective_options.h"

namespace tandem::offpolicy {

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

#endif  // TANDEM_COMMON_OFFPOLICY_LOSS_SCALES_H_
