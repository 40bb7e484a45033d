// Scheduler: decides which tokens the next step computes (stage 2). Pure: state in, plan out; no
// clock, thread or device.
//
// Groups wait by priority, then arrival, and are admitted when the sequence slots of their
// unfinished members and a learned share of their worst case in KV blocks (overcommit.h) are free.
// A step runs every decodable sequence first (one token each), then chunks of prompts, oldest group
// first, up to the token budget. A group's prompt is computed once; its members then hold the same
// blocks and become decodable together. A member that writes into a block others hold too gets a
// copy of it first.
//
// When no block is left, the youngest group gives: its member with the fewest tokens loses its KV
// and is computed again later, before any new group is admitted. The oldest group alone always
// fits, so it always advances, and every group ends.
//
// Full blocks can be found again by later prompts and by preempted members (prefix_chain.h).
// Use from the engine thread only.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "rollout_server/engine/schedule/kv_block_pool.h"
#include "rollout_server/engine/schedule/overcommit.h"
#include "rollout_server/engine/schedule/sequence.h"

namespace tandem::rollout {

struct SchedulerLimits {
  int64_t num_blocks = 0;
  int64_t max_sequences = 0;    // running at once
  int64_t max_step_tokens = 0;  // computed in one step; at least max_sequences
  bool prefix_cache = true;
};

// Copy the KV of a block to another one, before the step.
struct BlockCopy {
  BlockId from = 0, to = 0;
};

// Tokens [begin, end) of one sequence, or of a group's prompt when `sequence` is null.
struct Work {
  RunningGroup* group = nullptr;
  Sequence* sequence = nullptr;
  int64_t begin = 0, end = 0;
  bool draws =
      false;  // the last token's logits give the next token: of the sequence, or of all members
};

struct StepPlan {
  std::vector<RunningGroup*> admitted;  // by this plan, in order
  std::vector<BlockCopy> copies;        // to be made in this order, before the work
  std::vector<Work> work;               // decodes first, then chunks
};

// Blocks lent to a caller that computes beside the groups.
struct KvLoan {
  std::vector<BlockId> blocks;  // none any more when it was recalled
  bool recalled = false;        // a group needed them: what they held is lost
};

struct SchedulerStats {
  uint64_t num_preemptions = 0;
  uint64_t num_prefix_hits = 0, num_prefix_misses = 0;  // blocks looked for
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Blocks the group may hold at most: shared full prompt blocks, and per member the rest.
  static int64_t WorstCaseBlocks(const GroupRequest& request);

  // Queues a group. The caller made sure that its worst case fits an empty scheduler.
  void Add(GroupRequest request);

  // Admits what fits and plans one step; no work when nothing runs. Blocks for the tokens of the
  // plan are allocated.
  StepPlan Plan();

  // The plan's work is computed: members take over a finished prompt, full blocks get their names.
  void Computed(const StepPlan& plan);

  // Frees the blocks of a sequence that drew its last token, and hands its completion out. The
  // group goes with its last member; it and `sequence` are invalid then.
  struct Finished {
    FinishedCompletion completion;
    bool group_ended = false;
  };
  Finished Finish(Sequence* sequence);

  // Gives a group that waits the lowest priority, behind those that have it already. Nothing for
  // any other.
  void PutLast(GroupKey key);

  // Removes a waiting or running group and frees its blocks. False when unknown.
  bool Abort(GroupKey key);

  // The weights changed: what was computed before is not found any more. Groups that have drawn
  // nothing yet compute their prompt anew; with `recompute`, all running groups lose their KV.
  void OnInstall(bool recompute);

  // While held, nothing is admitted: what runs can run out.
  void HoldAdmissions(bool hold) { admissions_held_ = hold; }

  // Blocks for a caller that computes beside the groups, between steps. Null when too few are left.
  // Groups come first: they are planned as if nothing were lent, and when one needs a block and
  // none is left, Plan recalls loans, the youngest first.
  std::shared_ptr<const KvLoan> Borrow(int64_t num_blocks);
  // Only once; also of a loan that was recalled.
  void GiveBack(const std::shared_ptr<const KvLoan>& loan);
  bool has_lent() const { return !loans_.empty(); }

  bool HasWork() const { return !running_.empty() || (!waiting_.empty() && !admissions_held_); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  const std::vector<std::unique_ptr<RunningGroup>>& running() const { return running_; }
  RunningGroup* FindRunning(GroupKey key) const;
  const KvBlockPool& blocks() const { return blocks_; }
  const SchedulerStats& stats() const { return stats_; }

 private:
  std::list<GroupRequest>::iterator FindWaiting(GroupKey key);
  bool CanAdmit(const GroupRequest& request) const;
  void Admit(StepPlan& plan);
  void PlanDecodes(StepPlan& plan);
  void Resume(StepPlan& plan);
  void PlanChunks(StepPlan& plan);
  bool ExtendTo(Cached& kv, int64_t num_tokens, StepPlan& plan);
  bool ReclaimFrom(size_t first_victim);
  bool ReclaimFromGroup(RunningGroup& group);
  void Fork(RunningGroup& group);
  template <typename TokenAt>
  void FindPrefix(Cached& kv, int64_t num_tokens, const TokenAt& token_at);
  template <typename TokenAt>
  void PublishFull(Cached& kv, const TokenAt& token_at);
  void Drop(Cached& kv);
  void Deactivate(Sequence& sequence);
  void FreeKv(RunningGroup& group);
  void Remove(RunningGroup* group);
  int64_t ReservedBlocks(const RunningGroup& group) const;
  std::optional<BlockId> Allocate();
  int64_t NumAvailable() const;

  const SchedulerLimits limits_;
  KvBlockPool blocks_;
  std::list<GroupRequest> waiting_;                     // in order of admission
  std::vector<std::unique_ptr<RunningGroup>> running_;  // in order of admission
  std::vector<std::shared_ptr<KvLoan>> loans_;          // not recalled; in order of Borrow
  std::vector<Sequence*> ready_;                        // decodes of the plan being made
  Overcommit overcommit_;
  uint64_t generation_ = 0;  // of the weights
  bool admissions_held_ = false;
  SchedulerStats stats_;
};

}  // namespace tandem::rollout
