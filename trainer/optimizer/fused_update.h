// The arithmetic of AdamW by LibTorch's own kernels, on whatever device the tensors lie. Used by
// optimizer.cc where that is not the CPU.
#ifndef TANDEM_TRAINER_OPTIMIZER_FUSED_UPDATE_H_
#define TANDEM_TRAINER_OPTIMIZER_FUSED_UPDATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tandem::trainer {

// Sum of the squares of all elements. Norms of the tensors are made on the device, in a fixed order
// of sums; their squares are added up in double, in the order of the tensors. Waits for the device.
// Memory: a number for each 65 536 elements.
double SumOfSquares(const std::vector<at::Tensor>& tensors);

// Of as many elements in each of the four at every index: float32, contiguous, one device.
struct FusedTensors {
  std::vector<at::Tensor> masters, gradients, exp_avg, exp_avg_sq;
};

struct FusedCoefficients {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0;
  double weight_decay = 0;    // decoupled: masters times 1 - learning_rate * weight_decay, first
  double gradient_scale = 1;  // of what moments see; > 0
  int64_t num_updates = 1;    // this one included: of the bias corrections
};

// Update of masters and moments; gradients are zero afterwards. With gradients g times
// gradient_scale, m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2 and t updates:
//   p -= learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
// No temporaries of the tensors' size.
void FusedAdamW(const FusedTensors& tensors, const FusedCoefficients& coefficients);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_OPTIMIZER_FUSED_UPDATE_H_
