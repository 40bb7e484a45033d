// Backend: what a group's operations go through. Free of LibTorch.
#ifndef TANDEM_COMMON_COMM_BACKEND_H_
#define TANDEM_COMMON_COMM_BACKEND_H_

#include "common/model/device.h"

namespace tandem::comm {

// kNccl: between GPUs, one for each member, in a build of the cuda preset.
enum class Backend { kGloo, kNccl };

// Whose memory a group's operations read and write.
constexpr Device DeviceOf(Backend backend) {
  return backend == Backend::kNccl ? Device::kCuda : Device::kCpu;
}

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_BACKEND_H_
