// The arithmetic of AdamW by LibTorch's fused kernels, on whatever device the tensors lie. Used by
// optimizer.cc where that is not the CPU.
//
// AdamW is Adam with the weight decay applied to the master itself and not to the gradient
// (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019). "Fused" means that
// one kernel reads master, gradient and both moments once and writes them once, where separate
// operations would read and write the memory of a tensor about ten times.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tandem::trainer {

// Sum of the squares of all elements. The device computes the norm of each tensor, always in the
// same order of sums; the squares of the norms are added in double, in the order of the tensors.
// Waits for the device. Memory: one number for each 65 536 elements.
double SumOfSquares(const std::vector<at::Tensor>& tensors);

// At every index the four tensors have the same number of elements. All are float32, contiguous and
// on one device.
struct FusedTensors {
  std::vector<at::Tensor> masters, gradients, exp_avg, exp_avg_sq;
};

struct FusedCoefficients {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0;
  double weight_decay = 0;    // masters are first multiplied by 1 - learning_rate * weight_decay
  double gradient_scale = 1;  // gradients are multiplied by it; > 0
  int64_t num_updates = 1;    // t below, this update included
};

// Updates masters p and moments m, v; gradients are zero afterwards. With g the gradient times
// gradient_scale, and t updates:
//   m  = beta1 m + (1 - beta1) g
//   v  = beta2 v + (1 - beta2) g^2
//   p -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// Makes no temporary tensors of their size.
void FusedAdamW(const FusedTensors& tensors, const FusedCoefficients& coefficients);

}  // namespace tandem::trainer
