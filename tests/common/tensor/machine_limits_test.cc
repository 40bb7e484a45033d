#include "common/tensor/machine_limits.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(MachineLimits, TheRooflineIsTheSlowerOfReadingAndMultiplying) {
  const MachineLimits limits = {.read_bytes_per_second = 10, .flops_per_second = 100};
  EXPECT_EQ(RooflineSeconds(limits, 20, 100), 2);  // reading
  EXPECT_EQ(RooflineSeconds(limits, 20, 400), 4);  // multiplying
  const MachineLimits with_bf16 = {10, 100, 200};
  EXPECT_EQ(RooflineSeconds(with_bf16, 20, 400), 2);
}

TEST(MachineLimits, MeasuresSomethingThatAMachineCanHave) {
  ThreadTeam team(2);
  for (const InstructionSet set : SupportedInstructionSets()) {
    const MachineLimits limits = MeasureMachineLimits(team, set);
    EXPECT_GT(limits.read_bytes_per_second, 1e8) << InstructionSetName(set);
    EXPECT_LT(limits.read_bytes_per_second, 1e13);
    EXPECT_GT(limits.flops_per_second, 1e8);
    EXPECT_LT(limits.flops_per_second, 1e15);
  }
}

}  // namespace
}  // namespace tandem
