// The trainer's device on the CPU, with emulated kernels. It replaces
// trainer/policy/cuda/current_device.cc.
#include "trainer/policy/cuda/launch.h"

namespace tandem::trainer {

at::Device CurrentDevice() { return at::kCPU; }

tandem::cuda::Stream CurrentStream() { return nullptr; }

}  // namespace tandem::trainer
