// RefereeTensors: the tensors of a model directory in fp32, and roundings of them. For the .cc files
// of the referee; it includes LibTorch.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "drift_lab/referee/forward/variant.h"

namespace tandem::drift {

// By Hugging Face name. Contiguous fp32 on the CPU.
struct RefereeTensors {
  std::map<std::string, at::Tensor> by_name;
};

// `matrix` [out, in] fp32 as an engine that stores it in `format` multiplies by it, in fp32.
at::Tensor RoundedWeights(const at::Tensor& matrix, WeightFormat format);

// Rows of `x` in blocks along the last dimension, int8 with a scale each. `block` is 32 (q8_0, the
// scale in fp16) or 256 (q8_K).
at::Tensor RoundedActivations(const at::Tensor& x, int64_t block);

// `x` [..., D] with one scale for each vector of the last dimension, symmetrical, `bits` bits.
at::Tensor RoundedVectors(const at::Tensor& x, int bits);

// To e4m3 and back, largest magnitude 448.
at::Tensor RoundedToE4m3(const at::Tensor& x);

}  // namespace tandem::drift
