#include "rollout_server/engine/cuda/step/step_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::rollout::cuda {
namespace {

using ::testing::ElementsAre;

// Two decodes, then a chunk of three tokens, then a chunk of two.
struct StepExample {
  const std::vector<BlockId> first = {7, 2}, second = {5}, third = {9, 4, 1}, fourth = {3};
  const std::vector<TokenInput> inputs = {
      {.token_id = 10, .position = 17, .blocks = &first},
      {.token_id = 20, .position = 0, .blocks = &second},
      {.token_id = 30, .position = 15, .blocks = &third},
      {.token_id = 31, .position = 16, .blocks = &third},
      {.token_id = 32, .position = 17, .blocks = &third},
      {.token_id = 40, .position = 0, .blocks = &fourth},
      {.token_id = 41, .position = 1, .blocks = &fourth},
  };
};

TEST(StepInputs, PutEachTokenIntoItsSlotAndEachSequenceIntoTheTable) {
  const StepExample example;
  const StepInputs step = LayOut(example.inputs, 0);
  EXPECT_THAT(step.ids, ElementsAre(10, 20, 30, 31, 32, 40, 41));
  EXPECT_THAT(step.positions, ElementsAre(17, 0, 15, 16, 17, 0, 1));
  EXPECT_THAT(step.sequences, ElementsAre(0, 1, 2, 2, 2, 3, 3));
  EXPECT_THAT(step.contexts, ElementsAre(18, 1, 16, 17, 18, 1, 2));
  EXPECT_THAT(step.slots,
              ElementsAre(2 * 16 + 1, 5 * 16, 9 * 16 + 15, 4 * 16, 4 * 16 + 1, 3 * 16, 3 * 16 + 1));
  EXPECT_EQ(step.max_blocks, 3);
  EXPECT_THAT(step.block_tables, ElementsAre(7, 2, 0, 5, 0, 0, 9, 4, 1, 3, 0, 0));
  EXPECT_EQ(step.attended, 18 + 1 + 16 + 17 + 18 + 1 + 2);
  EXPECT_EQ(step.kv_read, 18 + 1 + 18 + 2);
  ASSERT_EQ(step.ranges.size(), 1u);
  EXPECT_EQ(step.ranges[0].count, 7);
  EXPECT_EQ(step.ranges[0].longest_key, 18);
  EXPECT_FALSE(step.ranges[0].flash);
}

TEST(StepInputs, GiveLongRunsToFlashWithTheWholeContextBeforeThem) {
  const StepExample example;
  const StepInputs step = LayOut(example.inputs, 2);
  ASSERT_EQ(step.ranges.size(), 2u);
  EXPECT_EQ(step.ranges[0].first, 0);
  EXPECT_EQ(step.ranges[0].count, 2);
  EXPECT_FALSE(step.ranges[0].flash);
  const RowRange& flash = step.ranges[1];
  EXPECT_EQ(flash.first, 2);
  EXPECT_EQ(flash.count, 5);
  EXPECT_TRUE(flash.flash);
  EXPECT_THAT(flash.query_ends, ElementsAre(0, 3, 5));
  EXPECT_THAT(flash.key_ends, ElementsAre(0, 18, 20));
  EXPECT_EQ(flash.longest_query, 3);
  EXPECT_EQ(flash.longest_key, 18);
  ASSERT_EQ(flash.slots.size(), 20u);
  EXPECT_EQ(flash.slots[0], 9 * 16);
  EXPECT_EQ(flash.slots[15], 9 * 16 + 15);
  EXPECT_EQ(flash.slots[17], 4 * 16 + 1);
  EXPECT_EQ(flash.slots[18], 3 * 16);
}

TEST(StepInputs, LeaveShorterRunsToPagedAttention) {
  const StepExample example;
  const StepInputs step = LayOut(example.inputs, 3);
  ASSERT_EQ(step.ranges.size(), 3u);
  EXPECT_TRUE(step.ranges[1].flash);
  EXPECT_EQ(step.ranges[1].count, 3);
  EXPECT_FALSE(step.ranges[2].flash);
  EXPECT_EQ(step.ranges[2].longest_key, 2);
  EXPECT_EQ(step.ranges[2].first, 5);
  EXPECT_EQ(step.ranges[2].count, 2);
}

// The tokens that flash attention gathers are bounded: 18 + 2 tokens are more than 19.
TEST(StepInputs, CutFlashRunsIntoRangesOfBoundedContexts) {
  const StepExample example;
  const StepInputs step = LayOut(example.inputs, 2, /*most_gathered=*/19);
  ASSERT_EQ(step.ranges.size(), 3u);
  EXPECT_EQ(step.ranges[1].first, 2);
  EXPECT_EQ(step.ranges[1].count, 3);
  EXPECT_EQ(step.ranges[1].slots.size(), 18u);
  EXPECT_TRUE(step.ranges[2].flash);
  EXPECT_EQ(step.ranges[2].first, 5);
  EXPECT_EQ(step.ranges[2].count, 2);
  EXPECT_THAT(step.ranges[2].query_ends, ElementsAre(0, 2));
  EXPECT_THAT(step.ranges[2].key_ends, ElementsAre(0, 2));
  EXPECT_EQ(step.ranges[2].longest_key, 2);
  // A single context over the bound is still one range.
  EXPECT_EQ(LayOut(example.inputs, 2, /*most_gathered=*/5).ranges.size(), 3u);
}

// Block 3 is read by the first copy and written by the fourth, block 7 written and then read.
TEST(StepInputs, CopyBlocksTogetherThatDoNotMeet) {
  EXPECT_THAT(CopyRounds({}), ElementsAre());
  const std::vector<BlockCopy> apart = {{3, 4}, {3, 5}, {3, 6}};
  EXPECT_THAT(CopyRounds(apart), ElementsAre(3));
  const std::vector<BlockCopy> meet = {{3, 7}, {3, 8}, {7, 9}, {5, 3}, {5, 3}};
  EXPECT_THAT(CopyRounds(meet), ElementsAre(2, 4, 5));
}

}  // namespace
}  // namespace tandem::rollout::cuda
