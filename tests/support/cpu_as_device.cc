// The trainer's device, on the CPU with emulated kernels: takes the place of
// trainer/cuda/current_device.cc.
#include "trainer/cuda/launch.h"

namespace tandem::trainer {

at::Device CurrentDevice() { return at::kCPU; }

tandem::cuda::Stream CurrentStream() { return nullptr; }

}  // namespace tandem::trainer
