// FakeQuantised: weights as a rollout server stores them in a number format, as floats, for a forward
// that is to see what the server sees. Parallel and deterministic. Exceptions of LibTorch pass
// through.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/matrix/weight_format.h"

namespace tandem::trainer {

// weight [out, in], float32 or bfloat16 -> stored values times scales (FakeQuantise,
// common/matrix/quantise.h), float32, on the weight's device. The weight stays.
at::Tensor FakeQuantised(const at::Tensor& weight, const WeightFormat& format);

}  // namespace tandem::trainer
