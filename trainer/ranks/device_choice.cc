#include "trainer/ranks/device_choice.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tensor/instruction_set.h"
#include "trainer/ranks/cuda_device.h"

namespace tandem::trainer {
namespace {

constexpr char kWanted[] = "trainer.device is cuda, and ";

absl::Status Named(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(kWanted, status.message()));
}

}  // namespace

absl::Status CheckDeviceCount(int num_devices, int local_rank) {
  if (local_rank < num_devices) return absl::OkStatus();
  if (num_devices == 0) return FailedPrecondition("this machine has no CUDA device");
  return FailedPrecondition("rank ", local_rank, " of this machine wants device ", local_rank, "; ",
                            num_devices, num_devices == 1 ? " is" : " are",
                            " visible: start fewer ranks or set CUDA_VISIBLE_DEVICES");
}

absl::Status CheckDevice(Device device, int local_rank) {
  if (device == Device::kCpu) return absl::OkStatus();
  const absl::StatusOr<int> count = CountCudaDevices();
  TANDEM_RETURN_IF_ERROR(Named(count.status()));
  return Named(CheckDeviceCount(*count, local_rank));
}

absl::Status ChooseDevice(Device device, int local_rank) {
  TANDEM_RETURN_IF_ERROR(CheckDevice(device, local_rank));
  return device == Device::kCpu ? absl::OkStatus() : Named(UseCudaDevice(local_rank));
}

std::string KernelsOf(Device device) {
  if (device == Device::kCuda) return absl::StrCat("cuda ", CudaDeviceName());
  return std::string(InstructionSetName(ActiveInstructionSet()));
}

}  // namespace tandem::trainer
