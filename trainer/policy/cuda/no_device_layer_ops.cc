#include "trainer/policy/cuda/device_cast.h"
#include "trainer/policy/cuda/device_layer_ops.h"

namespace tandem::trainer {

absl::StatusOr<std::unique_ptr<LayerOps>> MakeDeviceLayerOps(ComputeDType, bool) {
  return absl::FailedPreconditionError(
      "trainer.device is cuda, and this build has no CUDA: build the cuda preset "
      "(docs/dev/cuda.md)");
}

std::shared_ptr<BucketSource> MakeDeviceCast(const std::vector<NamedParameter>&, DType, Rounding) {
  return nullptr;
}

}  // namespace tandem::trainer
