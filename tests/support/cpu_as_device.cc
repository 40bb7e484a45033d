// The trainer's operations for a device, on the CPU with emulated kernels: takes the place of what
// makes them for a GPU.
#include "trainer/cuda/device_layer_ops.h"
#include "trainer/cuda/exact_device_ops.h"
#include "trainer/cuda/launch.h"

namespace tandem::trainer {

tandem::cuda::Stream CurrentStream() { return nullptr; }

absl::StatusOr<std::unique_ptr<LayerOps>> MakeDeviceLayerOps(ComputeDType dtype, bool exact) {
  if (exact) return std::make_unique<ExactDeviceOps>(at::kCPU, dtype);
  return std::make_unique<DeviceLayerOps>(at::kCPU, dtype);
}

}  // namespace tandem::trainer
