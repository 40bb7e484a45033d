// Helpers for calling kernels on tensors: element types, the current device and stream, errors.
#pragma once

#include <ATen/core/Tensor.h>

#include "common/cuda/kernels.h"

namespace tandem::trainer {

// The element type of a float32 or bfloat16 tensor.
inline tandem::cuda::Element ElementOf(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 ? tandem::cuda::Element::kBf16
                                          : tandem::cuda::Element::kFp32;
}

// Throws c10::Error where a kernel before this failed.
inline void CheckLaunch(const char* kernel) {
  const char* const error = tandem::cuda::KernelError();
  TORCH_CHECK(error == nullptr, "kernel of ", kernel, ": ", error);
}

// This thread's current device, and its current stream there, on which kernels run. On a GPU these
// are in current_device.cc; tests link tests/support/device/cpu_as_device.cc in its place. Throws
// c10::Error.
at::Device CurrentDevice();
tandem::cuda::Stream CurrentStream();

}  // namespace tandem::trainer
