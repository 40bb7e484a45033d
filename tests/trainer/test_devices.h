// Where a test of the policy runs: on the CPU, and by the operations of a device. Those run on the
// CPU too, with tests/support/device/cpu_as_device.cc, and on a GPU in the programs of label gpu.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "common/model/numerics.h"

namespace tandem::testing {

inline std::vector<Device> TestDevices() {
#if defined(TANDEM_ON_GPU)
  return {Device::kCuda};
#elif defined(TANDEM_CUDA)
  return {Device::kCpu};
#else
  return {Device::kCpu, Device::kCuda};
#endif
}

inline std::vector<Device> TestDevicesButTheCpu() {
  std::vector<Device> devices = TestDevices();
  std::erase(devices, Device::kCpu);
  return devices;
}

// Where a test of tensors that is built twice has them: on the CPU, and on the first GPU in the
// programs of label gpu.
inline at::Tensor OnDevice(const at::Tensor& tensor) {
#ifdef TANDEM_ON_GPU
  return tensor.to(at::kCUDA);
#else
  return tensor;
#endif
}

inline std::string NameOf(Device device) { return device == Device::kCpu ? "Cpu" : "Device"; }

}  // namespace tandem::testing
