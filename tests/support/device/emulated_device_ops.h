// The settings of the device that emulated_device_ops.cc emulates.
#pragma once

#include <cstdint>

#include "rollout_server/engine/cuda/device_ops.h"

namespace tandem::rollout::cuda {

struct EmulatedDevice {
  DeviceMemory memory = {int64_t{16} << 30, int64_t{16} << 30};
  int64_t graphs_left = int64_t{1} << 40;  // after this many, memory for graphs is exhausted
};
EmulatedDevice& emulated_device();  // one per process

}  // namespace tandem::rollout::cuda
