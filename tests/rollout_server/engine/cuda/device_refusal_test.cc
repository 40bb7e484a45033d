// The errors of an engine with `device: cuda` on a machine without one. CUDA_VISIBLE_DEVICES is
// empty in this test, in every build.
#include <gtest/gtest.h>

#include "tests/rollout_server/engine/engine_fixture.h"

namespace tandem::rollout {
namespace {

using tandem::testing::FailsWith;

class DeviceRefusalTest : public EngineFixture {
 protected:
  static EngineOptions Cuda() {
    EngineOptions options = Fp32();
    options.device = Device::kCuda;
    return options;
  }
};

TEST_F(DeviceRefusalTest, NamesWhatIsMissing) {
#ifdef TANDEM_CUDA
  const char* const missing = "this machine has no CUDA device";
#else
  const char* const missing = "this build has no CUDA: build the cuda preset (docs/dev/cuda.md)";
#endif
  EXPECT_THAT(Engine::Create(directory(), Cuda()),
              FailsWith(absl::StatusCode::kFailedPrecondition, missing));
}

TEST_F(DeviceRefusalTest, RefusesFaultsOfTheCpuKernels) {
  EngineOptions faulty = Cuda();
  faulty.faults.temperature = 0.9;
  EXPECT_THAT(Engine::Create(directory(), faulty),
              FailsWith(absl::StatusCode::kUnimplemented, "injected faults on a CUDA device"));
}

}  // namespace
}  // namespace tandem::rollout
