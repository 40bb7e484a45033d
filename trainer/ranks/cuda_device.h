// The CUDA device of a rank. cuda_device.cc in the cuda preset, no_cuda_device.cc elsewhere. Free
// of LibTorch.
#ifndef TANDEM_TRAINER_RANKS_CUDA_DEVICE_H_
#define TANDEM_TRAINER_RANKS_CUDA_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::trainer {

// That this process sees; 0 also where there is no driver.
//   UNIMPLEMENTED  this build has no CUDA
absl::StatusOr<int> CountCudaDevices();

// It becomes this thread's current one: where tensors go that say no more than "CUDA". For `index`
// below the count.
//   UNIMPLEMENTED        this build has no CUDA
//   FAILED_PRECONDITION  the device cannot be used (message from LibTorch)
absl::Status UseCudaDevice(int index);

// Of this thread's device, as its driver names it; empty without CUDA. UseCudaDevice was called.
std::string CudaDeviceName();

// Of this thread's device, by LibTorch's allocator: what it handed out and what it took from the
// device, in bytes, at most since the last reset. Both contain what is held all the time. Not
// there: CUDA's own memory, NCCL's buffers, other processes.
struct CudaPeaks {
  int64_t allocated = 0, reserved = 0;
};

// UseCudaDevice was called.
CudaPeaks PeakCudaMemory();
void ResetPeakCudaMemory();
int64_t TotalCudaMemory();  // of the device

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_RANKS_CUDA_DEVICE_H_
