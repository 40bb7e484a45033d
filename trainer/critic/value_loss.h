// ValueLoss: what a critic's values are trained on (stage 7).
//
//   L_t = (v_t - target_t)^2 / 2, or with a clip c > 0 the larger of it and the same of
//         clip(v_t, v0_t - c, v0_t + c), where v0 are the values the step starts from
//
// That is PPO's value loss (Schulman et al. 2017, and the clip of its reference code), as in TRL,
// verl and OpenRLHF.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tandem::trainer {

// All [R] float32, of trained tokens; only `values` may carry a gradient.
struct ValueLossInputs {
  at::Tensor values;
  at::Tensor start_values;  // v0
  at::Tensor targets;
  at::Tensor scale;  // of each token in the sum
};

struct ValueLossSums {
  at::Tensor total;         // [] sum of scale_t L_t: what backward() is called on
  int64_t num_clipped = 0;  // tokens with a scale where the clip decided the loss
};
ValueLossSums SumValueLoss(const ValueLossInputs& inputs, double clip);

}  // namespace tandem::trainer
