#include "trainer/ranks/cuda_device.h"

#include "common/base/status_macros.h"

namespace tandem::trainer {

absl::StatusOr<int> CountCudaDevices() {
  return Unimplemented("this build has no CUDA: build the cuda preset (docs/dev/cuda.md)");
}

absl::Status UseCudaDevice(int) { return CountCudaDevices().status(); }

std::string CudaDeviceName() { return {}; }
CudaPeaks PeakCudaMemory() { return {}; }
void ResetPeakCudaMemory() {}
int64_t TotalCudaMemory() { return 0; }

}  // namespace tandem::trainer
