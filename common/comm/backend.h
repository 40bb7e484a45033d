// Backend: the library that carries out a group's collective operations. Free of LibTorch.
#ifndef TANDEM_COMMON_COMM_BACKEND_H_
#define TANDEM_COMMON_COMM_BACKEND_H_

#include "common/model/device.h"

namespace tandem::comm {

// kNccl works between GPUs, one per member, and exists only in builds of the cuda preset.
enum class Backend { kGloo, kNccl };

// The device whose memory the operations of a group read and write.
constexpr Device DeviceOf(Backend backend) {
  return backend == Backend::kNccl ? Device::kCuda : Device::kCpu;
}

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_COMM_BACKEND_H_
