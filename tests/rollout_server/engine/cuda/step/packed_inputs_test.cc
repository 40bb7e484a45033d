#include "rollout_server/engine/cuda/step/packed_inputs.h"

#include <gtest/gtest.h>

namespace tandem::rollout::cuda {
namespace {

template <typename T>
std::vector<T> At(const std::vector<std::byte>& bytes, size_t at, size_t count) {
  std::vector<T> values(count);
  std::memcpy(values.data(), bytes.data() + at, count * sizeof(T));
  return values;
}

TEST(PackedInputs, LayArraysOneBehindTheOtherAtMultiplesOf16) {
  const std::vector<int32_t> five = {1, 2, 3, 4, 5}, none;
  const std::vector<int64_t> two = {-1, int64_t{1} << 40};
  PackedInputs packed;
  EXPECT_EQ(packed.Add(five), 0u);  // 20 bytes
  EXPECT_EQ(packed.Add(none), 32u);
  EXPECT_EQ(packed.Add(two), 32u);
  EXPECT_EQ(packed.bytes(), 48u);
  std::vector<std::byte> bytes(48);
  packed.Write(bytes.data());
  EXPECT_EQ(At<int32_t>(bytes, 0, 5), five);
  EXPECT_EQ(At<int64_t>(bytes, 32, 2), two);
}

// A decode and a run of two tokens for flash attention.
TEST(PackedInputs, HoldAWholeStep) {
  const std::vector<BlockId> first = {7}, second = {5};
  const std::vector<TokenInput> inputs = {{.token_id = 10, .position = 3, .blocks = &first},
                                          {.token_id = 20, .position = 0, .blocks = &second},
                                          {.token_id = 21, .position = 1, .blocks = &second}};
  const StepInputs step = LayOut(inputs, 2);
  PackedInputs packed;
  Pack(step, packed);
  std::vector<std::byte> bytes(packed.bytes());
  packed.Write(bytes.data());
  EXPECT_EQ(At<int32_t>(bytes, packed.At(step.ids), 3), step.ids);
  EXPECT_EQ(At<int32_t>(bytes, packed.At(step.positions), 3), step.positions);
  EXPECT_EQ(At<int32_t>(bytes, packed.At(step.sequences), 3), step.sequences);
  EXPECT_EQ(At<int32_t>(bytes, packed.At(step.contexts), 3), step.contexts);
  EXPECT_EQ(At<int64_t>(bytes, packed.At(step.slots), 3), step.slots);
  EXPECT_EQ(At<int32_t>(bytes, packed.At(step.block_tables), 2), step.block_tables);
  ASSERT_EQ(step.ranges.size(), 2u);
  EXPECT_EQ(At<int32_t>(bytes, packed.At(step.ranges[1].query_ends), 2),
            (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(At<int32_t>(bytes, packed.At(step.ranges[1].key_ends), 2),
            (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(At<int64_t>(bytes, packed.At(step.ranges[1].slots), 2), (std::vector<int64_t>{80, 81}));
}

}  // namespace
}  // namespace tandem::rollout::cuda
