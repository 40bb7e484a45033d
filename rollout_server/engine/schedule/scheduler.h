// Scheduler: decides which tokens the next step computes (stage 2). Pure: state in, plan out; no
// clock, thread or device. Use from the engine thread only.
//
// The idea is continuous batching (Orca, OSDI 2022) over a paged KV cache with copy-on-write
// sharing (vLLM, SOSP 2023), with chunked prefill (Sarathi-Serve, OSDI 2024). A group waits by
// priority and then by arrival, and is admitted when the sequence slots of its members and a
// learned share of its worst case in KV blocks (Overcommit) are free. A step computes one token
// of every decodable sequence, and then chunks of prompts, oldest group first, up to the token
// budget. A group's prompt is computed once; its members then hold the same blocks and become
// decodable together. A member that writes into a shared block gets a copy of it first. Full blocks
// can be found again by later prompts and by preempted members (kv_block_pool.h).
//
// Between two turns a sequence waits: it keeps its KV and its slot, and has no work until Continue.
//
// Invariant: the oldest group with work always advances, so every group ends whose turns are
// answered. When no block is left, blocks lent to scores come back first, and then those of
// sequences that wait; then the youngest group gives some back: its member with the
// fewest tokens loses its KV (its prompt, where no member has any), and is computed again before
// any new group is admitted. The oldest group alone always fits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "rollout_server/engine/schedule/kv_block_pool.h"
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
  // Whether the last token's logits give the next token: of the sequence, or of all members.
  bool draws = false;
};

struct StepPlan {
  std::vector<RunningGroup*> admitted;  // by this plan, in order
  std::vector<BlockCopy> copies;        // to be made in this order, before the work
  std::vector<Work> work;               // decodes first, then chunks
};

// Blocks lent to a caller that computes beside the groups.
struct KvLoan {
  std::vector<BlockId> blocks;  // empty after a recall
  bool recalled = false;        // a group needed the blocks, and their contents are lost
};

struct SchedulerStats {
  uint64_t num_preemptions = 0;
  uint64_t num_prefix_hits = 0, num_prefix_misses = 0;  // blocks looked for
};

// The share of a group's worst case that the scheduler reserves. Most completions stop early, so
// reserving the worst case leaves the cache half empty, while reserving what groups used on average
// risks preemption. Pure.
//
// share = mean + 2 standard deviations of used / worst case over recent groups, at most 1; 1 until
// kGroups have been seen, and again after the cache ran out.
class Overcommit {
 public:
  static constexpr int kGroups = 16;

  void OnFinished(double used_share) {
    ++num_groups_;
    const double weight = std::max(1.0 / num_groups_, 1.0 / kMemory);
    const double difference = used_share - mean_;
    mean_ += weight * difference;
    variance_ = (1 - weight) * (variance_ + weight * difference * difference);
  }

  void OnPreempted() { *this = Overcommit(); }

  double share() const {
    return num_groups_ < kGroups ? 1.0 : std::min(1.0, mean_ + 2 * std::sqrt(variance_));
  }

 private:
  static constexpr double kMemory = 64;  // groups
  double num_groups_ = 0;
  double mean_ = 0, variance_ = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Blocks the group may hold at most: shared full prompt blocks, and per member the rest.
  static int64_t WorstCaseBlocks(const GroupRequest& request);

  // Queues a group whose worst case fits an empty scheduler (checked).
  void Add(GroupRequest request);

  // Admits the groups that fit and plans one step, without work when nothing runs. Allocates the
  // blocks for the plan's tokens.
  StepPlan Plan();

  // The plan's work is computed: members take over a finished prompt, full blocks get their names.
  void Computed(const StepPlan& plan);

  // Frees the blocks of a sequence that has its last token, and returns its completion. The group
  // is destroyed with its last member; it and `sequence` are invalid then.
  struct Finished {
    FinishedCompletion completion;
    bool group_ended = false;
  };
  Finished Finish(Sequence* sequence);

  // The sequence, which has the last token of its turn, waits for ids until Continue, which follows
  // the appending of those.
  void Wait(Sequence* sequence) { sequence->waits = true; }
  void Continue(Sequence* sequence) { sequence->waits = false; }

  // Gives a waiting group the lowest priority, behind those that have it already. Ignores any other
  // key.
  void PutLast(GroupKey key);

  // Removes a waiting or running group and frees its blocks. False when unknown.
  bool Abort(GroupKey key);

  // The weights changed: blocks computed before are not found any more. Groups without a token yet
  // compute their prompt anew; with `recompute`, all running groups lose their KV.
  void OnInstall(bool recompute);

  // While held, nothing is admitted, so that running groups can run out.
  void HoldAdmissions(bool hold) { admissions_held_ = hold; }

  // Lends blocks to a caller that computes between steps. Null when too few are left. Groups come
  // first: they are planned as if nothing were lent, and when one needs a block and none is left,
  // Plan recalls loans, the youngest first.
  std::shared_ptr<const KvLoan> Borrow(int64_t num_blocks);
  // Call once for each loan, recalled or not.
  void GiveBack(const std::shared_ptr<const KvLoan>& loan);
  bool has_lent() const { return !loans_.empty(); }

  // Whether the next plan has any.
  bool HasWork() const;
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
  bool ReclaimFromWaiting();
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
