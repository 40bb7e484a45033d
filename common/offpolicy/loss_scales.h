// LossScales: what one token counts in the sum of a loss, and what that sum is divided by (arrow 7,
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
  std::vector<double> scale;  // [T]; 0 where nothing counts; one value per completion
  double denominator = 0;     // this call's part: parts add up over microbatches and ranks
};

// `counted` [T]: the tokens that count in the divisor (kept ones, or all trained ones);
// `completion` [T] numbers their completions, which are whole within one call. Nothing counted:
// denominator 0 (kConstant: as ever). Whether an update is made does not hang on the denominator:
// with no kept token there is none (train_step.h).
LossScales ComputeLossScales(std::span<const uint8_t> counted, std::span<const int64_t> completion,
                             int64_t num_completions, const ObjectiveOptions& options);

}  // namespace tandem::offpolicy

#endif  // TANDEM_COMMON_OFFPOLICY_LOSS_SCALES_H_
