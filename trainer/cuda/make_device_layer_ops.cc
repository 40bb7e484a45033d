#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include "trainer/cuda/device_layer_ops.h"
#include "trainer/cuda/exact_device_ops.h"
#include "trainer/cuda/launch.h"

namespace tandem::trainer {

tandem::cuda::Stream CurrentStream() { return c10::cuda::getCurrentCUDAStream().stream(); }

absl::StatusOr<std::unique_ptr<LayerOps>> MakeDeviceLayerOps(ComputeDType dtype, bool exact) {
  return std::make_unique<DeviceLayerOps>(at::Device(at::kCUDA, c10::cuda::current_device()),
                                          dtype);
}

}  // namespace tandem::trainer
