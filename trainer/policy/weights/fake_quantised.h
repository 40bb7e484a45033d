// FakeQuantised: weights as a rollout server stores them in a number format, as floats, for a forward
// that is to see what the server sees. Parallel and deterministic. Exceptions of LibTorch pass
// through.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/matrix/weight_format.h"

namespace tandem::trainer {

// rows [n, depth], weights of output features or heads of keys and values, of any float dtype ->
// stored values times scales (FakeQuantise, common/matrix/quantise.h), float32, on the rows' device,
// by way of the host. `rows` stays.
at::Tensor FakeQuantised(const at::Tensor& rows, const WeightFormat& format);

}  // namespace tandem::trainer
