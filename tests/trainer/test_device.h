// Where a test that is built twice has its tensors: on the CPU everywhere, and on the first GPU with
// TANDEM_ON_GPU (the cuda preset, label gpu).
#ifndef TANDEM_TESTS_TRAINER_TEST_DEVICE_H_
#define TANDEM_TESTS_TRAINER_TEST_DEVICE_H_

#include <ATen/core/Tensor.h>

namespace tandem::testing {

inline at::Tensor OnDevice(const at::Tensor& tensor) {
#ifdef TANDEM_ON_GPU
  return tensor.to(at::kCUDA);
#else
  return tensor;
#endif
}

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TRAINER_TEST_DEVICE_H_
