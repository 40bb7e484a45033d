// The CUDA device of a rank. cuda_device.cc in the cuda preset, no_cuda_device.cc elsewhere. Free
// of LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::trainer {

// The number of devices that this process sees; 0 also where there is no driver.
//   UNIMPLEMENTED  this build has no CUDA
absl::StatusOr<int> CountCudaDevices();

// Makes device `index`, below the count, this thread's current one: the one that tensors are placed
// on whose options say no more than "CUDA".
//   UNIMPLEMENTED        this build has no CUDA
//   FAILED_PRECONDITION  the device cannot be used (message from LibTorch)
absl::Status UseCudaDevice(int index);

// The name of this thread's device, by its driver; empty without CUDA. Call UseCudaDevice before.
std::string CudaDeviceName();

// The largest number of bytes since the last reset that LibTorch's allocator handed out, and that
// it had reserved, on this thread's device. Memory that is held all the time counts in both. CUDA's
// own memory, NCCL's buffers and other processes do not count.
struct CudaPeaks {
  int64_t allocated = 0, reserved = 0;
};

// Call UseCudaDevice before.
CudaPeaks PeakCudaMemory();
void ResetPeakCudaMemory();
int64_t TotalCudaMemory();  // of the device

}  // namespace tandem::trainer
