// What a rank says of `device: cuda` where there is none for it. CUDA_VISIBLE_DEVICES is empty
// here, in every build.
#include "trainer/ranks/device_choice.h"

#include <gtest/gtest.h>

#include "tests/support/status_matchers.h"
#include "trainer/ranks/cuda_device.h"

namespace tandem::trainer {
namespace {

using ::tandem::testing::FailsWith;
using ::tandem::testing::IsOk;

TEST(ChooseDevice, TheCpuNeedsNothing) { EXPECT_THAT(ChooseDevice(Device::kCpu, 7), IsOk()); }

TEST(ChooseDevice, NamesWhatIsMissing) {
#ifdef TANDEM_CUDA
  EXPECT_THAT(ChooseDevice(Device::kCuda, 0),
              FailsWith(absl::StatusCode::kFailedPrecondition,
                        "trainer.device is cuda, and this machine has no CUDA device"));
#else
  EXPECT_THAT(
      ChooseDevice(Device::kCuda, 0),
      FailsWith(absl::StatusCode::kUnimplemented,
                "trainer.device is cuda, and this build has no CUDA: build the cuda preset"));
#endif
}

TEST(CheckDevice, SaysWhatChoosingTheDeviceWouldSay) {
  EXPECT_THAT(CheckDevice(Device::kCpu, 7), IsOk());
  EXPECT_EQ(CheckDevice(Device::kCuda, 99), ChooseDevice(Device::kCuda, 99));
}

TEST(CheckDeviceCount, EachRankOfAMachineHasADeviceOfItsOwn) {
  EXPECT_THAT(CheckDeviceCount(2, 0), IsOk());
  EXPECT_THAT(CheckDeviceCount(2, 1), IsOk());
  EXPECT_THAT(
      CheckDeviceCount(2, 3),
      FailsWith(absl::StatusCode::kFailedPrecondition,
                "rank 3 of this machine wants device 3; 2 are visible: start fewer ranks or "
                "set CUDA_VISIBLE_DEVICES"));
  EXPECT_THAT(CheckDeviceCount(1, 1),
              FailsWith(absl::StatusCode::kFailedPrecondition, "1 is visible"));
}

}  // namespace
}  // namespace tandem::trainer
