// Conversions between [T] tensors and numbers on the host: stages 6 and 7 compute on numbers.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace tandem::trainer {

// `x` [T] of any floating type, without its gradient.
std::vector<double> ToDoubles(const at::Tensor& x);

// [T] float32.
at::Tensor ToFloatTensor(std::span<const double> values);

}  // namespace tandem::trainer
