// Scheduler: which tokens the next step computes (arrow 2). Pure: state in, plan out; no clock, thread
// or device.
//
// Groups wait in order of arrival and are admitted when the KV blocks and sequence slots of their worst
// case are free, so a running group never runs out and nothing is ever preempted. A step runs every
// decodable sequence first (one token each), then prompt chunks of the oldest groups up to the token
// budget. A group's prompt is computed once; then its members become decodable together, holding the
// full prompt blocks in common and a copy each of the last, partial one.
// Use from the engine thread only.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_SCHEDULER_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "rollout_server/engine/kv_block_pool.h"
#include "rollout_server/engine/sequence.h"

namespace tandem::rollout {

struct SchedulerLimits {
  int64_t num_blocks = 0;
  int64_t max_sequences = 0;    // running at once
  int64_t max_step_tokens = 0;  // decode tokens and prompt chunks of one step
};

// One prompt chunk: positions [begin, end) of the group's prompt; `last` when it ends the prompt.
struct PromptChunk {
  RunningGroup* group = nullptr;
  int64_t begin = 0, end = 0;
  bool last = false;
};

struct StepPlan {
  std::vector<RunningGroup*> admitted;  // by this plan, in order
  std::vector<Sequence*> decodes;       // one token each
  std::vector<PromptChunk> chunks;
};

// Copy the KV of a partial block from one block to another, before the step that writes to it.
struct BlockCopy {
  BlockId from = 0, to = 0;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Blocks the group may hold at most: shared full prompt blocks, and per member the rest.
  static int64_t WorstCaseBlocks(const GroupRequest& request);

  // Queues a group. The caller made sure that its worst case fits an empty scheduler.
  void Add(GroupRequest request);

  // Admits what fits and plans one step; empty when there is nothing to do. Blocks for the tokens of
  // the plan are allocated.
  StepPlan Plan();

  // The prompt is in the cache: gives each member its block table. Returns the copies of the partial
  // block (the first member takes the original).
  std::vector<BlockCopy> StartMembers(RunningGroup* group);

  // Frees a finished sequence's blocks; the group goes when its last member does (returns true).
  // `group` is invalid after true.
  bool Finish(RunningGroup* group, Sequence* sequence);

  // Removes a waiting or running group and frees its blocks. False when unknown.
  bool Abort(GroupKey key);

  // Sets blocks aside for a caller that allocates them itself. False when running groups' worst cases
  // leave too few.
  bool Reserve(int64_t num_blocks);
  void Unreserve(int64_t num_blocks) { reserved_blocks_ -= num_blocks; }

  bool HasWork() const { return !waiting_.empty() || !running_.empty(); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  int64_t num_running() const { return static_cast<int64_t>(running_.size()); }
  KvBlockPool& blocks() { return blocks_; }
  const KvBlockPool& blocks() const { return blocks_; }
  int64_t reserved_blocks() const { return reserved_blocks_; }

 private:
  void Admit(StepPlan& plan);
  void Remove(RunningGroup* group);

  const SchedulerLimits limits_;
  KvBlockPool blocks_;
  std::deque<GroupRequest> waiting_;
  std::vector<std::unique_ptr<RunningGroup>> running_;  // in order of admission
  int64_t reserved_blocks_ = 0;                         // sum of running groups' worst cases
  int64_t reserved_sequences_ = 0;
};

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_SCHEDULER_H_
