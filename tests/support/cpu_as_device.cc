// The trainer's operations for a device, on the CPU: takes the place of what makes them for a GPU.
#include "trainer/cuda/device_layer_ops.h"

namespace tandem::trainer {

absl::StatusOr<std::unique_ptr<LayerOps>> MakeDeviceLayerOps(ComputeDType dtype) {
  return std::make_unique<DeviceLayerOps>(at::kCPU, dtype);
}

}  // namespace tandem::trainer
