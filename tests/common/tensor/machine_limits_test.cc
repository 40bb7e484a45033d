#include "common/tensor/machine_limits.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

TEST(MachineLimits, TheRooflineIsTheSlowerOfReadingAndMultiplying) {
  const MachineLimits limits = {.read_bytes_per_second = 10, .flops_per_second = 100};
  EXPECT_EQ(RooflineSeconds(limits, {.bytes = 20, .flops = 100}), 2);  // reading
  EXPECT_EQ(RooflineSeconds(limits, {.bytes = 20, .flops = 400}), 4);  // multiplying
}

TEST(MachineLimits, EveryTypeIsMultipliedAtItsOwnRateOrAtThatOfTheNextWider) {
  const MachineLimits limits = {10, 100, 200, 400};
  const MachineWork work = {.bytes = 20, .flops = 400, .bf16_flops = 400, .int8_ops = 400};
  EXPECT_EQ(RooflineSeconds(limits, work), 4 + 2 + 1);
  EXPECT_EQ(RooflineSeconds({10, 100, 200}, work), 4 + 2 + 2);
  EXPECT_EQ(RooflineSeconds({10, 100}, work), 4 + 4 + 4);
}

TEST(MachineLimits, WorkAddsUpTypeByType) {
  MachineWork work = {.bytes = 1, .flops = 2, .bf16_flops = 3, .int8_ops = 4};
  work += {.bytes = 10, .flops = 20, .bf16_flops = 30, .int8_ops = 40};
  EXPECT_EQ(work.operations(), 22 + 33 + 44);
  const MachineWork rest =
      work - MachineWork{.bytes = 1, .flops = 2, .bf16_flops = 3, .int8_ops = 4};
  EXPECT_EQ(rest.bytes, 10);
  EXPECT_EQ(rest.flops, 20);
  EXPECT_EQ(rest.bf16_flops, 30);
  EXPECT_EQ(rest.int8_ops, 40);
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
