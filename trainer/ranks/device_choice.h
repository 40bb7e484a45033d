// Which device a rank of the trainer computes on. Used by run_trainer.cc before anything is opened.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/model/numerics.h"

namespace tandem::trainer {

// With kCuda, the device whose index is the rank's number on this machine becomes this thread's
// current device. Does nothing with kCpu.
//   UNIMPLEMENTED        this build has no CUDA
//   FAILED_PRECONDITION  CheckDeviceCount; the device cannot be used
absl::Status ChooseDevice(Device device, int local_rank);

// Whether ranks with numbers up to `local_rank` have a device each. Uses none of them.
// Errors: those of ChooseDevice.
absl::Status CheckDevice(Device device, int local_rank);

// The hardware that this rank's kernels are chosen for, spelled as a server spells its own:
// "avx512", "cuda NVIDIA H100".
std::string KernelsOf(Device device);

// Checks that each rank of a machine has a device of its own.
//   FAILED_PRECONDITION  this one has none
absl::Status CheckDeviceCount(int num_devices, int local_rank);

}  // namespace tandem::trainer
