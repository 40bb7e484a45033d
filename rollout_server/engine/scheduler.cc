#include "rollout_server/engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace tandem::rollout {

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits), blocks_(limits.num_blocks) {}

int64_t Scheduler::WorstCaseBlocks(const GroupRequest& request) {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t shared = prompt / KvBlockPool::kBlockTokens;
  // The last token drawn is never computed, so its KV is never stored.
  const int64_t longest = prompt + request.sampling.max_new_tokens - 1;
  return shared + request.num_completions * (KvBlockPool::BlocksFor(longest) - shared);
}

void Scheduler::Add(GroupRequest request) {
  TANDEM_CHECK(WorstCaseBlocks(request) <= limits_.num_blocks);
  TANDEM_CHECK(request.num_completions <= limits_.max_sequences);
  waiting_.push_back(std::move(request));
}

void Scheduler::Admit(StepPlan& plan) {
  while (!waiting_.empty()) {
    const GroupRequest& next = waiting_.front();
    const int64_t worst = WorstCaseBlocks(next);
    if (reserved_blocks_ + worst > limits_.num_blocks) return;
    if (reserved_sequences_ + next.num_completions > limits_.max_sequences) return;
    auto group = std::make_unique<RunningGroup>();
    group->request = std::move(waiting_.front());
    waiting_.pop_front();
    group->reserved_blocks = worst;
    group->num_unfinished = group->request.num_completions;
    for (int32_t i = 0; i < group->request.num_completions; ++i) {
      auto sequence = std::make_unique<Sequence>();
      sequence->group = group.get();
      sequence->completion.index = i;
      group->sequences.push_back(std::move(sequence));
    }
    reserved_blocks_ += worst;
    reserved_sequences_ += group->request.num_completions;
    plan.admitted.push_back(group.get());
    running_.push_back(std::move(group));
  }
}

StepPlan Scheduler::Plan() {
  StepPlan plan;
  Admit(plan);
  int64_t budget = limits_.max_step_tokens;
  for (const auto& group : running_) {
    for (const auto& sequence : group->sequences) {
      if (!sequence->decodable || sequence->finished || budget == 0) continue;
      const int64_t needed = KvBlockPool::BlocksFor(sequence->next_position() + 1);
      while (static_cast<int64_t>(sequence->blocks.size()) < needed) {
        sequence->blocks.push_back(blocks_.Allocate());
      }
      plan.decodes.push_back(sequence.get());
      --budget;
    }
  }
  for (const auto& group : running_) {
    const int64_t left = group->prompt_size() - group->num_prompt_computed;
    if (left == 0 || budget == 0) continue;
    PromptChunk chunk;
    chunk.group = group.get();
    chunk.begin = group->num_prompt_computed;
    chunk.end = chunk.begin + std::min(left, budget);
    chunk.last = chunk.end == group->prompt_size();
    while (static_cast<int64_t>(group->prompt_blocks.size()) < KvBlockPool::BlocksFor(chunk.end)) {
      group->prompt_blocks.push_back(blocks_.Allocate());
    }
    budget -= chunk.end - chunk.begin;
    group->num_prompt_computed = chunk.end;
    plan.chunks.push_back(chunk);
  }
  return plan;
}

std::vector<BlockCopy> Scheduler::StartMembers(RunningGroup* group) {
  std::vector<BlockCopy> copies;
  const int64_t full = group->prompt_size() / KvBlockPool::kBlockTokens;
  const bool partial = static_cast<int64_t>(group->prompt_blocks.size()) > full;
  for (size_t i = 0; i < group->sequences.size(); ++i) {
    Sequence& sequence = *group->sequences[i];
    if (i == 0) {
      sequence.blocks = group->prompt_blocks;
    } else {
      for (int64_t b = 0; b < full; ++b) {
        blocks_.Share(group->prompt_blocks[b]);
        sequence.blocks.push_back(group->prompt_blocks[b]);
      }
      if (partial) {
        sequence.blocks.push_back(blocks_.Allocate());
        copies.push_back({group->prompt_blocks[full], sequence.blocks.back()});
      }
    }
    sequence.decodable = true;
  }
  group->prompt_blocks.clear();
  return copies;
}

bool Scheduler::Finish(RunningGroup* group, Sequence* sequence) {
  TANDEM_CHECK(!sequence->finished);
  for (BlockId block : sequence->blocks) blocks_.Release(block);
  sequence->blocks.clear();
  sequence->finished = true;
  sequence->decodable = false;
  if (--group->num_unfinished > 0) return false;
  Remove(group);
  return true;
}

bool Scheduler::Abort(GroupKey key) {
  const auto queued = std::find_if(waiting_.begin(), waiting_.end(),
                                   [key](const GroupRequest& g) { return g.key == key; });
  if (queued != waiting_.end()) {
    waiting_.erase(queued);
    return true;
  }
  for (const auto& group : running_) {
    if (group->request.key != key) continue;
    for (BlockId block : group->prompt_blocks) blocks_.Release(block);
    for (const auto& sequence : group->sequences) {
      for (BlockId block : sequence->blocks) blocks_.Release(block);
    }
    Remove(group.get());
    return true;
  }
  return false;
}

bool Scheduler::Reserve(int64_t num_blocks) {
  if (reserved_blocks_ + num_blocks > limits_.num_blocks) return false;
  reserved_blocks_ += num_blocks;
  return true;
}

void Scheduler::Remove(RunningGroup* group) {
  reserved_blocks_ -= group->reserved_blocks;
  reserved_sequences_ -= group->request.num_completions;
  std::erase_if(running_, [group](const auto& g) { return g.get() == group; });
}

}  // namespace tandem::rollout
