#include "rollout_server/engine/schedule/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
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
  int64_t tokens = 0;
  for (const Work& work : plan.work) tokens += work.end - work.begin;
  return tokens;
}

// Does the engine's part: adds a token wherever the plan samples one. `is_last` says whether it
// ends the sequence. Returns the keys of the groups that ended.
template <typename IsLast>
std::vector<GroupKey> Compute(Scheduler& scheduler, const StepPlan& plan, const IsLast& is_last) {
  scheduler.Computed(plan);
  std::vector<Sequence*> drawn;
  for (const Work& work : plan.work) {
    if (!work.draws) continue;
    if (work.sequence != nullptr) {
      drawn.push_back(work.sequence);
    } else {
      for (const auto& s : work.group->sequences) drawn.push_back(s.get());
    }
  }
  std::vector<GroupKey> ended;
  for (Sequence* s : drawn) {
    const GroupKey key = s->group->request.key;
    const int32_t longest = s->group->request.sampling.max_new_tokens;
    s->completion.token_ids.push_back(7);
    const auto size = static_cast<int32_t>(s->completion.token_ids.size());
    if (size < longest && !is_last(*s)) continue;
    const Scheduler::Finished finished = scheduler.Finish(s);
    EXPECT_EQ(finished.completion.token_ids.size(), static_cast<size_t>(size));
    if (finished.group_ended) ended.push_back(key);
  }
  return ended;
}

std::vector<GroupKey> Compute(Scheduler& scheduler, const StepPlan& plan) {
  return Compute(scheduler, plan, [](const Sequence&) { return false; });
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
  EXPECT_TRUE(plan.admitted.empty() && plan.work.empty());
}

TEST(Scheduler, AdmitsInOrderOfArrivalWhileWorstCasesFit) {
  Scheduler scheduler({.num_blocks = 5, .max_sequences = 8, .max_step_tokens = 64});
  scheduler.Add(Group(1, 16, 1, 17));  // 2 blocks
  scheduler.Add(Group(2, 16, 2, 17));  // 3 blocks
  scheduler.Add(Group(3, 16, 1, 1));   // 1 block
  EXPECT_THAT(Keys(scheduler.Plan().admitted), ElementsAre(1, 2));
  EXPECT_EQ(scheduler.num_waiting(), 1);
}

TEST(Scheduler, ASmallGroupDoesNotOvertakeALargeOne) {
  Scheduler scheduler({.num_blocks = 4, .max_sequences = 8, .max_step_tokens = 64});
  scheduler.Add(Group(1, 16, 1, 17));  // 2 blocks
  scheduler.Add(Group(2, 48, 1, 2));   // 4 blocks: does not fit beside 1
  scheduler.Add(Group(3, 16, 1, 1));   // 1 block: would fit
  EXPECT_THAT(Keys(scheduler.Plan().admitted), ElementsAre(1));
}

TEST(Scheduler, PutsAGroupThatWaitsBehindAllOthersWhateverItsPriorityWas) {
  Scheduler scheduler({.num_blocks = 8, .max_sequences = 2, .max_step_tokens = 64});
  for (const GroupKey key : {1, 2, 3}) {
    GroupRequest group = Group(key, 10, 1, 1);
    group.priority = 5 - static_cast<int32_t>(key);
    scheduler.Add(std::move(group));
  }
  const StepPlan first = scheduler.Plan();
  ASSERT_THAT(Keys(first.admitted), ElementsAre(1, 2));
  GroupRequest lowest = Group(4, 10, 1, 1);
  lowest.priority = std::numeric_limits<int32_t>::min();
  scheduler.Add(std::move(lowest));
  for (const GroupKey key : {1, 3, 99}) scheduler.PutLast(key);  // runs, waits, unknown
  scheduler.Add(Group(5, 10, 1, 1));
  Compute(scheduler, first);
  const StepPlan second = scheduler.Plan();
  EXPECT_THAT(Keys(second.admitted), ElementsAre(5, 4));
  Compute(scheduler, second);
  EXPECT_THAT(Keys(scheduler.Plan().admitted), ElementsAre(3));
}

TEST(Scheduler, AFinishedMemberLeavesItsSlotAndBlocksToTheNextGroup) {
  Scheduler scheduler({.num_blocks = 64, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 4, 3, 9));
  scheduler.Add(Group(2, 4, 2, 9));
  const StepPlan first = scheduler.Plan();
  EXPECT_THAT(Keys(first.admitted), ElementsAre(1));
  Compute(scheduler, first, [](const Sequence& s) { return s.completion.index == 1; });
  EXPECT_THAT(Keys(scheduler.Plan().admitted), ElementsAre(2));
}

TEST(Scheduler, ChunksALongPromptToTheBudget) {
  Scheduler scheduler({.num_blocks = 16, .max_sequences = 4, .max_step_tokens = 24});
  scheduler.Add(Group(1, 60, 1, 2));
  std::vector<int64_t> ends;
  for (int step = 0; step < 3; ++step) {
    const StepPlan plan = scheduler.Plan();
    ASSERT_EQ(plan.work.size(), 1u);
    ends.push_back(plan.work[0].end);
    EXPECT_EQ(plan.work[0].draws, step == 2);
    Compute(scheduler, plan);
  }
  EXPECT_THAT(ends, ElementsAre(24, 48, 60));
}

TEST(Scheduler, MembersShareThePromptAndAllButTheLastCopyItsPartialBlockWhenTheyWrite) {
  Scheduler scheduler(
      {.num_blocks = 16, .max_sequences = 4, .max_step_tokens = 64, .prefix_cache = false});
  scheduler.Add(Group(1, 36, 3, 4));
  Compute(scheduler, scheduler.Plan());
  const RunningGroup& group = *scheduler.running()[0];
  const std::vector<BlockId> shared = group.sequences[0]->kv.blocks;
  ASSERT_EQ(shared.size(), 3u);
  for (const auto& s : group.sequences) EXPECT_EQ(s->kv.blocks, shared);
  EXPECT_EQ(scheduler.blocks().num_held(), 3);
  const StepPlan plan = scheduler.Plan();
  ASSERT_EQ(plan.copies.size(), 2u);
  for (const BlockCopy& copy : plan.copies) EXPECT_EQ(copy.from, shared[2]);
  EXPECT_EQ(group.sequences[0]->kv.blocks[2], plan.copies[0].to);
  EXPECT_EQ(group.sequences[1]->kv.blocks[2], plan.copies[1].to);
  EXPECT_EQ(group.sequences[2]->kv.blocks[2], shared[2]);
  EXPECT_EQ(scheduler.blocks().num_held(), 5);
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
  Compute(scheduler, scheduler.Plan());
  EXPECT_EQ(scheduler.blocks().num_held(), 2);
  EXPECT_TRUE(scheduler.Abort(1));
  EXPECT_EQ(scheduler.blocks().num_held(), 0);
}

TEST(Scheduler, AbortFreesADecodingGroupAndLetsTheNextOneIn) {
  Scheduler scheduler({.num_blocks = 6, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 20, 3, 8));
  scheduler.Add(Group(2, 20, 3, 8));
  Compute(scheduler, scheduler.Plan());
  EXPECT_EQ(scheduler.num_waiting(), 1);
  EXPECT_TRUE(scheduler.Abort(1));
  EXPECT_EQ(scheduler.blocks().num_held(), 0);
  EXPECT_THAT(Keys(scheduler.Plan().admitted), ElementsAre(2));
}

TEST(Scheduler, LendsBlocksThatNobodyHoldsAndTakesThemBack) {
  Scheduler scheduler({.num_blocks = 4, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 20, 1, 4));
  Compute(scheduler, scheduler.Plan());
  EXPECT_EQ(scheduler.Borrow(3), nullptr);
  const auto borrowed = scheduler.Borrow(2);
  ASSERT_NE(borrowed, nullptr);
  EXPECT_TRUE(scheduler.has_lent());
  EXPECT_EQ(scheduler.Borrow(1), nullptr);
  scheduler.GiveBack(borrowed);
  EXPECT_FALSE(scheduler.has_lent());
  EXPECT_EQ(scheduler.blocks().num_available(), 2);
}

TEST(Scheduler, RecallsTheYoungestLoanWhenAGroupNeedsABlock) {
  // 16 prompt tokens are one block; the first token drawn wants a second one.
  Scheduler scheduler({.num_blocks = 4, .max_sequences = 4, .max_step_tokens = 64});
  scheduler.Add(Group(1, 16, 1, 30));
  Compute(scheduler, scheduler.Plan());
  const auto first = scheduler.Borrow(1), second = scheduler.Borrow(2);
  ASSERT_NE(second, nullptr);
  Compute(scheduler, scheduler.Plan());
  EXPECT_FALSE(first->recalled);
  EXPECT_TRUE(second->recalled);
  EXPECT_TRUE(second->blocks.empty());
  EXPECT_EQ(scheduler.stats().num_preemptions, 0u);
  EXPECT_EQ(scheduler.blocks().num_available(), 1);
  scheduler.GiveBack(second);  // nothing is left of it
  scheduler.GiveBack(first);
  EXPECT_EQ(scheduler.blocks().num_available(), 2);
}

// What a plan computes, without the blocks.
std::vector<std::vector<int64_t>> WorkOf(const StepPlan& plan) {
  std::vector<std::vector<int64_t>> all;
  for (const Work& work : plan.work) {
    const int64_t member = work.sequence != nullptr ? work.sequence->completion.index : -1;
    all.push_back({work.group->request.key, member, work.begin, work.end, work.draws});
  }
  return all;
}

TEST(Scheduler, PlansGroupsAsIfNothingWereLent) {
  std::mt19937_64 random(3);
  int num_recalled = 0;
  for (int run = 0; run < 20; ++run) {
    const SchedulerLimits limits = {
        .num_blocks = 20, .max_sequences = 8, .max_step_tokens = 40, .prefix_cache = false};
    Scheduler lends(limits), keeps(limits);
    for (GroupKey key = 1; key <= 30; ++key) {
      const auto group =
          Group(key, 1 + static_cast<int64_t>(random() % 60),
                1 + static_cast<int32_t>(random() % 4), 1 + static_cast<int32_t>(random() % 60));
      if (Scheduler::WorstCaseBlocks(group) > limits.num_blocks) continue;
      lends.Add(group);
      keeps.Add(group);
    }
    std::vector<std::shared_ptr<const KvLoan>> loans;
    while (keeps.HasWork()) {
      if (auto loan = lends.Borrow(1 + static_cast<int64_t>(random() % 6))) loans.push_back(loan);
      if (!loans.empty() && random() % 3 == 0) {
        num_recalled += loans.back()->recalled;
        lends.GiveBack(loans.back());
        loans.pop_back();
      }
      const StepPlan with = lends.Plan(), without = keeps.Plan();
      ASSERT_EQ(WorkOf(with), WorkOf(without));
      const auto stops_early = [](const Sequence& s) {
        return (s.group->request.key * 7 + static_cast<int64_t>(s.completion.token_ids.size())) %
                   11 ==
               0;
      };
      Compute(lends, with, stops_early);
      Compute(keeps, without, stops_early);
    }
    for (const auto& loan : loans) lends.GiveBack(loan);
    EXPECT_EQ(lends.blocks().num_held(), 0);
    EXPECT_EQ(lends.stats().num_preemptions, keeps.stats().num_preemptions);
  }
  EXPECT_GT(num_recalled, 20);
}

TEST(Overcommit, TakesTheMeanAndTwoDeviationsOnceItHasSeenEnough) {
  Overcommit overcommit;
  for (int i = 0; i < Overcommit::kGroups - 1; ++i) overcommit.OnFinished(0.25);
  EXPECT_EQ(overcommit.share(), 1.0);
  overcommit.OnFinished(0.25);
  EXPECT_DOUBLE_EQ(overcommit.share(), 0.25);
  overcommit.OnPreempted();
  EXPECT_EQ(overcommit.share(), 1.0);
}

TEST(Overcommit, NeverSetsMoreAsideThanTheWorstCase) {
  // Half of the groups fill their worst case: mean 0.5, deviation 0.5, so 1.5 before the cap.
  Overcommit overcommit;
  for (int i = 0; i < 32; ++i) overcommit.OnFinished(i % 2);
  EXPECT_EQ(overcommit.share(), 1.0);
}

// A random workload with everything that can happen to a scheduler.
class RandomWorkload {
 public:
  explicit RandomWorkload(uint32_t seed)
      : random_(seed),
        limits_{Draw(12, 40), Draw(4, 12), Draw(12, 64), Draw(0, 3) != 0},
        scheduler_(limits_) {}

  void Run() {
    int64_t steps = 0;
    while (next_key_ <= 80 || scheduler_.HasWork()) {
      ASSERT_LT(++steps, 20000) << open_.size() << " groups never ended";
      Disturb();
      const StepPlan plan = scheduler_.Plan();
      ASSERT_EQ(plan.work.empty(), scheduler_.num_running() == 0) << "a step without progress";
      CheckPlan(plan);
      for (const GroupKey key : Compute(scheduler_, plan, [&](const Sequence&) {
             // At first most stop early, so that the scheduler overcommits; later they do not.
             return next_key_ <= 40 ? Draw(0, 2) != 0 : Draw(0, 40) == 0;
           })) {
        ASSERT_EQ(open_.erase(key), 1u);
      }
      CheckHolders();
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_TRUE(open_.empty());
    EXPECT_EQ(scheduler_.blocks().num_held(), 0);
    num_preemptions += scheduler_.stats().num_preemptions;
    num_hits += scheduler_.stats().num_prefix_hits;
  }

  inline static uint64_t num_preemptions = 0, num_hits = 0;

 private:
  int64_t Draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  void Disturb() {
    if (next_key_ <= 80) {
      // First long ones, of which little is used, then all sorts.
      const int64_t shortest = next_key_ <= 40 ? 60 : 1;
      GroupRequest group =
          Group(next_key_, Draw(1, next_key_ <= 40 ? 20 : 70), static_cast<int32_t>(Draw(1, 4)),
                static_cast<int32_t>(Draw(shortest, 70)));
      group.prompt[0] = static_cast<int32_t>(Draw(0, 3));  // some prompts begin alike
      group.priority = static_cast<int32_t>(Draw(0, 1));
      if (Scheduler::WorstCaseBlocks(group) <= limits_.num_blocks) {
        open_.insert(next_key_);
        scheduler_.Add(std::move(group));
      }
      ++next_key_;
    }
    if (!open_.empty() && Draw(0, 60) == 0) {
      ASSERT_TRUE(scheduler_.Abort(*open_.begin()));
      open_.erase(open_.begin());
    }
    if (Draw(0, 40) == 0) scheduler_.OnInstall(/*recompute=*/Draw(0, 1) == 0);
    if (Draw(0, 20) == 0) {
      const auto borrowed = scheduler_.Borrow(Draw(1, 3));
      if (borrowed) scheduler_.GiveBack(borrowed);
    }
  }

  // Checks that work is within the budget, begins where the KV ends, and writes to blocks without
  // other holders.
  void CheckPlan(const StepPlan& plan) {
    ASSERT_LE(Tokens(plan), limits_.max_step_tokens);
    std::set<const void*> seen;
    for (const Work& work : plan.work) {
      const Cached& kv = work.sequence != nullptr ? work.sequence->kv : work.group->prompt;
      ASSERT_TRUE(seen.insert(&kv).second);
      ASSERT_EQ(work.begin, kv.num_computed);
      ASSERT_LT(work.begin, work.end);
      ASSERT_LE(work.end, static_cast<int64_t>(kv.blocks.size()) * KvBlockPool::kBlockTokens);
      for (int64_t p = work.begin; p < work.end; ++p) {
        ASSERT_EQ(scheduler_.blocks().holders(kv.blocks[p / KvBlockPool::kBlockTokens]), 1);
      }
    }
  }

  // The blocks of the groups, counted by hand, are the holders of the pool.
  void CheckHolders() {
    std::map<BlockId, int32_t> holders;
    for (const auto& group : scheduler_.running()) {
      for (const BlockId block : group->prompt.blocks) ++holders[block];
      for (const auto& s : group->sequences) {
        for (const BlockId block : s->kv.blocks) ++holders[block];
      }
    }
    for (BlockId b = 0; b < scheduler_.blocks().num_blocks(); ++b) {
      ASSERT_EQ(scheduler_.blocks().holders(b), holders.contains(b) ? holders[b] : 0);
    }
    ASSERT_EQ(scheduler_.blocks().num_held(), static_cast<int64_t>(holders.size()));
  }

  std::mt19937 random_;
  const SchedulerLimits limits_;
  Scheduler scheduler_;
  std::set<GroupKey> open_;
  GroupKey next_key_ = 1;
};

// Every group ends, every step advances within the budget, and no block is leaked or written by two
// sequences.
TEST(Scheduler, FinishesEveryGroupOfRandomWorkloadsAndLeaksNoBlock) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorkload(seed).Run();
    if (HasFatalFailure()) return;
  }
  // The workloads do cover the cases that they are meant for.
  EXPECT_GT(RandomWorkload::num_preemptions, 20u);
  EXPECT_GT(RandomWorkload::num_hits, 100u);
}

}  // namespace
}  // namespace tandem::rollout
