#include "rollout_server/engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace tandem::rollout {
namespace {

using ::testing::ElementsAre;

GroupRequest Group(GroupKey key, int64_t prompt, int32_t completions, int32_t max_new_tokens) {
  GroupRequest request;
  request.key = key;
  request.prompt.assign(prompt, 1);
  request.num_completions = completions;
  request.sampling.max_new_tokens = max_new_tokens;
  return request;
}

std::vector<GroupKey> Keys(const std::vector<RunningGroup*>& groups) {
  std::vector<GroupKey> keys;
  for (const RunningGroup* group : groups) keys.push_back(group->request.key);
  return keys;
}

int64_t Tokens(const StepPlan& plan) {
  int64_t tokens = static_cast<int64_t>(plan.decodes.size());
  for (const PromptChunk& chunk : plan.chunks) tokens += chunk.end - chunk.begin;
  return tokens;
}

// Plays the engine: one drawn token for each row of the plan; the last one finishes a sequence.
// Returns the keys of the groups that ended.
std::vector<GroupKey> Draw(Scheduler& scheduler, const StepPlan& plan) {
  std::vector<Sequence*> drawn = plan.decodes;
  for (const PromptChunk& chunk : plan.chunks) {
    if (!chunk.last) continue;
    scheduler.StartMembers(chunk.group);
    for (const auto& sequence : chunk.group->sequences) drawn.push_back(sequence.get());
  }
  std::vector<GroupKey> ended;
  for (Sequence* sequence : drawn) {
    RunningGroup* group = sequence->group;
    const GroupKey key = group->request.key;
    sequence->completion.token_ids.push_back(7);
    const auto count = static_cast<int32_t>(sequence->completion.token_ids.size());
    if (count < group->request.sampling.max_new_tokens) continue;
    if (scheduler.Finish(group, sequence)) ended.push_back(key);
  }
  return ended;
}

TEST(Scheduler, WorstCaseCountsSharedPromptBlocksOnce) {
  // 40 prompt tokens: two full blocks shared. 40 + 10 - 1 = 49 tokens are stored: four blocks, so
  // each of three members holds two of its own.
  EXPECT_EQ(Scheduler::WorstCaseBlocks(Group(1, 40, 3, 10)), 2 + 3 * 2);
  // The last token drawn is never stored: 32 + 1 - 1 = 32 tokens are two blocks, all shared.
  EXPECT_EQ(Scheduler::WorstCaseBlocks(Group(1, 32, 8, 1)), 2);
  EXPECT_EQ(Scheduler::WorstCaseBlocks(Group(1, 32, 8, 2)), 2 + 8);
}

TEST(Scheduler, PlansNothingWithoutGroups) {
  Scheduler scheduler({.num_blocks = 4, .max_sequences = 4, .max_step_tokens = 16});
  EXPECT_FALSE(scheduler.HasWork());
  const StepPlan plan = scheduler.Plan();
  EXPECT_TRUE(plan.admitted.empty() && plan.decodes.empty() && plan.chunks.empty());
}

TEST(Scheduler, AdmitsInOrderOfArrivalWhileWorstCasesFit) {
  Scheduler scheduler({.num_blocks = 5, .max_sequences = 8, .max_step_tokens = 64});
  scheduler.Add(Group(1, 16, 1, 17));  // 2 blocks
  scheduler.Add(Group(2, 16, 2, 17));  // 3 blocks
  scheduler.Add(Group(3, 16, 1, 1));   // 1 block
  const StepPlan plan = scheduler.Plan();
  EXPECT_THAT(Keys(plan.admitted), ElementsAre(1, 2));
  EXPECT_EQ(scheduler.num_waiting(), 1);
  EXPECT_EQ(scheduler.reserved_blocks(), 5);
}

TEST(Scheduler, ASmallGroupDoesNotOvertakeALargeOne) {
  Scheduler scheduler({.num_blocks = 4, .max_sequences = 8, .max_step_tokens = 64});
  scheduler.Add(Group(1, 16, 1, 17));  // 2 blocks
  scheduler.Add(Group(2, 48, 1, 2));   // 4 blocks: does not fit beside 1
  scheduler.Add(Group(3, 16, 1, 1));   // 1 block: would fit
  EXPECT_THAT(Keys(scheduler.Plan().admitted), ElementsAre(1));
}

TEST(Scheduler, AdmitsNoMoreSequencesThanItsLimit) {
  Scheduler scheduler({.num_blocks = 64, .max_sequences = 5, .max_step_tokens = 64});
  scheduler.Add(Group(1, 4, 3, 4));
  scheduler.Add(Group(2, 4, 2, 4));
  scheduler.Add(Group(3, 4, 1, 4));
  EXPECT_THAT(Keys(scheduler.Plan().admitted), ElementsAre(1, 2));
}

TEST(Scheduler, ComputesAPromptOnceAndMembersDecodeTogether) {
  Scheduler scheduler({.num_blocks = 16, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 20, 3, 4));
  const StepPlan first = scheduler.Plan();
  ASSERT_EQ(first.chunks.size(), 1u);
  EXPECT_EQ(first.chunks[0].begin, 0);
  EXPECT_EQ(first.chunks[0].end, 20);
  EXPECT_TRUE(first.chunks[0].last);
  EXPECT_TRUE(first.decodes.empty());
  Draw(scheduler, first);
  const StepPlan second = scheduler.Plan();
  EXPECT_TRUE(second.chunks.empty());
  ASSERT_EQ(second.decodes.size(), 3u);
  EXPECT_EQ(second.decodes[0]->next_position(), 20);
}

TEST(Scheduler, ChunksALongPromptToTheBudget) {
  Scheduler scheduler({.num_blocks = 16, .max_sequences = 4, .max_step_tokens = 24});
  scheduler.Add(Group(1, 60, 1, 2));
  std::vector<int64_t> ends;
  for (int step = 0; step < 3; ++step) {
    const StepPlan plan = scheduler.Plan();
    ASSERT_EQ(plan.chunks.size(), 1u);
    ends.push_back(plan.chunks[0].end);
    EXPECT_EQ(plan.chunks[0].last, step == 2);
    Draw(scheduler, plan);
  }
  EXPECT_THAT(ends, ElementsAre(24, 48, 60));
}

TEST(Scheduler, DecodesComeBeforePromptChunksInTheBudget) {
  Scheduler scheduler({.num_blocks = 64, .max_sequences = 8, .max_step_tokens = 20});
  scheduler.Add(Group(1, 8, 4, 8));
  Draw(scheduler, scheduler.Plan());
  scheduler.Add(Group(2, 40, 1, 8));
  const StepPlan plan = scheduler.Plan();
  EXPECT_EQ(plan.decodes.size(), 4u);
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].end, 16);
  EXPECT_EQ(Tokens(plan), 20);
}

TEST(Scheduler, PromptChunksOfTheOldestGroupComeFirst) {
  Scheduler scheduler({.num_blocks = 64, .max_sequences = 8, .max_step_tokens = 20});
  scheduler.Add(Group(1, 15, 1, 8));
  scheduler.Add(Group(2, 15, 1, 8));
  scheduler.Add(Group(3, 15, 1, 8));
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[0].group->request.key, 1);
  EXPECT_TRUE(plan.chunks[0].last);
  EXPECT_EQ(plan.chunks[1].group->request.key, 2);
  EXPECT_EQ(plan.chunks[1].end, 5);
  EXPECT_FALSE(plan.chunks[1].last);
}

TEST(Scheduler, MembersShareFullPromptBlocksAndCopyThePartialOne) {
  Scheduler scheduler({.num_blocks = 16, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 36, 3, 4));
  const StepPlan plan = scheduler.Plan();
  RunningGroup* group = plan.chunks[0].group;
  const std::vector<BlockId> prompt = group->prompt_blocks;
  ASSERT_EQ(prompt.size(), 3u);
  const std::vector<BlockCopy> copies = scheduler.StartMembers(group);
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(group->sequences[0]->blocks, prompt);
  for (size_t member = 1; member < 3; ++member) {
    const std::vector<BlockId>& blocks = group->sequences[member]->blocks;
    EXPECT_THAT(blocks, ElementsAre(prompt[0], prompt[1], copies[member - 1].to));
    EXPECT_EQ(copies[member - 1].from, prompt[2]);
    EXPECT_NE(copies[member - 1].to, prompt[2]);
  }
  EXPECT_EQ(scheduler.blocks().holders(prompt[0]), 3);
  EXPECT_EQ(scheduler.blocks().holders(prompt[2]), 1);
  EXPECT_EQ(scheduler.blocks().num_free(), 16 - 5);
}

TEST(Scheduler, APromptOfWholeBlocksNeedsNoCopy) {
  Scheduler scheduler({.num_blocks = 16, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 32, 3, 4));
  RunningGroup* group = scheduler.Plan().chunks[0].group;
  EXPECT_TRUE(scheduler.StartMembers(group).empty());
  EXPECT_EQ(scheduler.blocks().num_free(), 14);
  for (const auto& sequence : group->sequences) sequence->completion.token_ids = {7};
  EXPECT_EQ(scheduler.Plan().decodes.size(), 3u);  // each opens a block of its own
  EXPECT_EQ(scheduler.blocks().num_free(), 11);
}

TEST(Scheduler, AFinishedSequenceFreesItsOwnBlocksAtOnce) {
  Scheduler scheduler({.num_blocks = 16, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 36, 2, 4));
  RunningGroup* group = scheduler.Plan().chunks[0].group;
  scheduler.StartMembers(group);
  EXPECT_EQ(scheduler.blocks().num_free(), 12);
  EXPECT_FALSE(scheduler.Finish(group, group->sequences[0].get()));
  EXPECT_EQ(scheduler.blocks().num_free(), 13);  // the shared two stay
  EXPECT_TRUE(scheduler.Finish(group, group->sequences[1].get()));
  EXPECT_EQ(scheduler.blocks().num_free(), 16);
  EXPECT_EQ(scheduler.reserved_blocks(), 0);
  EXPECT_FALSE(scheduler.HasWork());
}

TEST(Scheduler, AbortTakesAGroupOutOfTheQueue) {
  Scheduler scheduler({.num_blocks = 2, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 16, 1, 17));
  scheduler.Add(Group(2, 16, 1, 17));
  scheduler.Plan();
  EXPECT_TRUE(scheduler.Abort(2));
  EXPECT_EQ(scheduler.num_waiting(), 0);
  EXPECT_EQ(scheduler.num_running(), 1);
  EXPECT_FALSE(scheduler.Abort(2));
}

TEST(Scheduler, AbortFreesAGroupWhosePromptIsHalfComputed) {
  Scheduler scheduler({.num_blocks = 8, .max_sequences = 4, .max_step_tokens = 20});
  scheduler.Add(Group(1, 40, 2, 4));
  scheduler.Plan();
  EXPECT_EQ(scheduler.blocks().num_free(), 6);
  EXPECT_TRUE(scheduler.Abort(1));
  EXPECT_EQ(scheduler.blocks().num_free(), 8);
  EXPECT_EQ(scheduler.reserved_blocks(), 0);
}

TEST(Scheduler, AbortFreesADecodingGroupAndLetsTheNextOneIn) {
  Scheduler scheduler({.num_blocks = 6, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 20, 3, 8));
  scheduler.Add(Group(2, 20, 3, 8));
  Draw(scheduler, scheduler.Plan());
  EXPECT_EQ(scheduler.num_waiting(), 1);
  EXPECT_TRUE(scheduler.Abort(1));
  EXPECT_EQ(scheduler.blocks().num_free(), 6);
  EXPECT_THAT(Keys(scheduler.Plan().admitted), ElementsAre(2));
}

TEST(Scheduler, ReserveKeepsBlocksFromAdmission) {
  Scheduler scheduler({.num_blocks = 4, .max_sequences = 4, .max_step_tokens = 64});
  EXPECT_TRUE(scheduler.Reserve(3));
  EXPECT_FALSE(scheduler.Reserve(2));
  scheduler.Add(Group(1, 16, 1, 17));
  EXPECT_TRUE(scheduler.Plan().admitted.empty());
  scheduler.Unreserve(3);
  EXPECT_THAT(Keys(scheduler.Plan().admitted), ElementsAre(1));
  EXPECT_FALSE(scheduler.Reserve(3));
}

// The blocks of the plan's sequences, counted by hand, are the holders of the pool.
void ExpectHoldersAgree(const Scheduler& scheduler, const std::map<GroupKey, RunningGroup*>& live) {
  std::map<BlockId, int32_t> holders;
  for (const auto& [key, group] : live) {
    for (BlockId block : group->prompt_blocks) ++holders[block];
    for (const auto& sequence : group->sequences) {
      for (BlockId block : sequence->blocks) ++holders[block];
    }
  }
  for (BlockId b = 0; b < scheduler.blocks().num_blocks(); ++b) {
    ASSERT_EQ(scheduler.blocks().holders(b), holders.contains(b) ? holders[b] : 0);
  }
}

// Random groups, aborts and reservations: every group ends, in a bounded number of steps, within
// the budget, and no block is leaked.
TEST(Scheduler, FinishesEveryGroupOfRandomWorkloadsAndLeaksNoBlock) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const auto draw = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    const SchedulerLimits limits = {draw(12, 40), draw(4, 12), draw(12, 64)};
    Scheduler scheduler(limits);
    std::map<GroupKey, bool> open;
    std::map<GroupKey, RunningGroup*> live;
    GroupKey next_key = 1;
    int steps = 0;
    while (next_key <= 40 || scheduler.HasWork()) {
      ASSERT_LT(++steps, 20000) << "seed " << seed;
      if (next_key <= 40 && draw(0, 2) == 0) {
        GroupRequest group = Group(next_key, draw(1, 70), static_cast<int32_t>(draw(1, 4)),
                                   static_cast<int32_t>(draw(1, 20)));
        if (Scheduler::WorstCaseBlocks(group) <= limits.num_blocks) {
          open[next_key] = true;
          scheduler.Add(std::move(group));
        }
        ++next_key;
      }
      if (!open.empty() && draw(0, 60) == 0) {
        const GroupKey victim = open.begin()->first;
        ASSERT_TRUE(scheduler.Abort(victim));
        open.erase(victim);
        live.erase(victim);
      }
      const StepPlan plan = scheduler.Plan();
      ASSERT_LE(Tokens(plan), limits.max_step_tokens);
      for (RunningGroup* group : plan.admitted) live[group->request.key] = group;
      for (GroupKey key : Draw(scheduler, plan)) {
        ASSERT_EQ(open.erase(key), 1u);
        live.erase(key);
      }
      ExpectHoldersAgree(scheduler, live);
    }
    EXPECT_TRUE(open.empty());
    EXPECT_EQ(scheduler.blocks().num_free(), limits.num_blocks);
    EXPECT_EQ(scheduler.reserved_blocks(), 0);
  }
}

}  // namespace
}  // namespace tandem::rollout
