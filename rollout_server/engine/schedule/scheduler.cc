#include "rollout_server/engine/schedule/scheduler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"

namespace tandem::rollout {
namespace {

constexpr int64_t kBlock = KvBlockPool::kBlockTokens;

int64_t FullPromptBlocks(const GroupRequest& request) {
  return static_cast<int64_t>(request.prompt.size()) / kBlock;
}

// Blocks that a completion of `num_new` tokens holds besides the full ones of its prompt. Its last
// token is never computed, so it has no KV.
int64_t MemberBlocks(const GroupRequest& request, int64_t num_new) {
  const int64_t stored =
      static_cast<int64_t>(request.prompt.size()) + std::max<int64_t>(num_new, 1) - 1;
  return KvBlockPool::BlocksFor(stored) - FullPromptBlocks(request);
}

// Blocks that a group holds at most while `num_members` of it are unfinished.
int64_t BlocksOf(const GroupRequest& request, int64_t num_members) {
  return FullPromptBlocks(request) +
         num_members * MemberBlocks(request, request.max_completion_tokens());
}

void KeepMostOutdated(const FoundKv& found, std::optional<FoundKv>& kept) {
  if (!kept || found.age() >= kept->age()) kept = found;
}

// Notes the prefix that the sequence found in the record of its completion, which outlives the KV.
void NoteFound(Sequence& sequence) {
  if (sequence.kv.found) KeepMostOutdated(*sequence.kv.found, sequence.completion.found_kv);
}

}  // namespace

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits), blocks_(limits.num_blocks) {
  TANDEM_CHECK(limits.max_step_tokens >= limits.max_sequences);
}

int64_t Scheduler::WorstCaseBlocks(const GroupRequest& request) {
  return BlocksOf(request, request.num_completions);
}

void Scheduler::Add(GroupRequest request) {
  TANDEM_CHECK(WorstCaseBlocks(request) <= limits_.num_blocks);
  TANDEM_CHECK(request.num_completions <= limits_.max_sequences);
  const auto place = std::find_if(waiting_.begin(), waiting_.end(), [&](const GroupRequest& other) {
    return other.priority < request.priority;
  });
  waiting_.insert(place, std::move(request));
}

void Scheduler::PutLast(GroupKey key) {
  const auto found = FindWaiting(key);
  if (found == waiting_.end()) return;
  found->priority = std::numeric_limits<int32_t>::min();
  waiting_.splice(waiting_.end(), waiting_, found);
}

std::list<GroupRequest>::iterator Scheduler::FindWaiting(GroupKey key) {
  return std::ranges::find(waiting_, key, &GroupRequest::key);
}

bool Scheduler::CanAdmit(const GroupRequest& request) const {
  int64_t blocks = WorstCaseBlocks(request), sequences = request.num_completions;
  for (const auto& group : running_) {
    blocks += BlocksOf(group->request, group->num_unfinished);
    sequences += group->num_unfinished;
    for (const auto& s : group->sequences) {
      // Members that lost their KV come first.
      if (!s->active && s->has_work() && !s->completion.token_ids.empty()) return false;
    }
  }
  if (sequences > limits_.max_sequences) return false;
  if (running_.empty()) return true;
  const double share = overcommit_.share();
  if (std::ceil(share * static_cast<double>(blocks)) > static_cast<double>(limits_.num_blocks)) {
    return false;
  }
  // It fits by the learned share. Are there blocks for it to begin?
  const int64_t prompt = KvBlockPool::BlocksFor(static_cast<int64_t>(request.prompt.size()));
  return share == 1.0 || prompt + sequences <= NumAvailable();
}

bool Scheduler::HasWork() const {
  if (std::ranges::any_of(running_, [](const auto& group) { return group->has_work(); })) {
    return true;
  }
  return !waiting_.empty() && !admissions_held_ && CanAdmit(waiting_.front());
}

void Scheduler::Admit(StepPlan& plan) {
  while (!admissions_held_ && !waiting_.empty() && CanAdmit(waiting_.front())) {
    auto group = std::make_unique<RunningGroup>();
    group->request = std::move(waiting_.front());
    waiting_.pop_front();
    group->num_unfinished = group->request.num_completions;
    for (int32_t i = 0; i < group->request.num_completions; ++i) {
      auto sequence = std::make_unique<Sequence>();
      sequence->group = group.get();
      sequence->completion.index = group->request.first_index + i;
      sequence->completion.charge = ByteCharge(group->request.charge.meter());
      group->sequences.push_back(std::move(sequence));
    }
    plan.admitted.push_back(group.get());
    running_.push_back(std::move(group));
  }
}

StepPlan Scheduler::Plan() {
  StepPlan plan;
  Admit(plan);
  ready_.clear();
  const uint64_t preemptions = stats_.num_preemptions;
  PlanDecodes(plan);
  if (stats_.num_preemptions == preemptions) Resume(plan);
  PlanChunks(plan);
  return plan;
}

// Plans every sequence that waits for its next token, as far as blocks last.
void Scheduler::PlanDecodes(StepPlan& plan) {
  for (size_t g = 0; g < running_.size(); ++g) {
    for (const auto& sequence : running_[g]->sequences) {
      if (!sequence->decodable()) continue;
      bool room = ExtendTo(sequence->kv, sequence->num_tokens(), plan);
      // Takes blocks from the youngest group first and from this one last, maybe from this
      // sequence.
      while (!room && ReclaimFrom(g) && sequence->active) {
        room = ExtendTo(sequence->kv, sequence->num_tokens(), plan);
      }
      if (room) ready_.push_back(sequence.get());
    }
  }
}

// Brings preempted members back, oldest group first, while blocks last.
void Scheduler::Resume(StepPlan& plan) {
  const auto oldest = static_cast<size_t>(
      std::ranges::find_if(running_, [](const auto& group) { return group->has_work(); }) -
      running_.begin());
  for (size_t g = oldest; g < running_.size(); ++g) {
    RunningGroup& group = *running_[g];
    if (!group.prompt_done) continue;
    for (const auto& sequence : group.sequences) {
      if (sequence->active || !sequence->has_work()) continue;
      const int64_t needed = KvBlockPool::BlocksFor(sequence->num_tokens()) -
                             static_cast<int64_t>(group.prompt.blocks.size());
      // Every running sequence needs another block soon, so one is kept free for each. When none
      // runs, the oldest group with work must advance.
      const int64_t spare = static_cast<int64_t>(ready_.size());
      const auto enough = [&] { return NumAvailable() >= needed + spare; };
      while (!enough() && g == oldest && ready_.empty() && ReclaimFrom(g + 1)) {
      }
      if (!enough()) return;
      sequence->kv = group.prompt;
      for (const BlockId block : sequence->kv.blocks) blocks_.Share(block);
      sequence->active = true;
      FindPrefix(sequence->kv, sequence->num_tokens() - 1,
                 [&](int64_t position) { return sequence->TokenAt(position); });
      sequence->found_prefix |= sequence->kv.num_computed > group.prompt.num_computed;
      NoteFound(*sequence);
      ExtendTo(sequence->kv, sequence->num_tokens(), plan);  // so that the next one counts it
      if (sequence->decodable()) ready_.push_back(sequence.get());
    }
  }
}

// Spends the budget that the decodes leave on prompts and resumed members, and assembles the plan.
void Scheduler::PlanChunks(StepPlan& plan) {
  std::vector<Work> chunks;
  int64_t budget = limits_.max_step_tokens - static_cast<int64_t>(ready_.size());
  const auto add = [&](size_t g, Sequence* sequence, Cached& kv, int64_t num_tokens) {
    Work work{running_[g].get(), sequence, kv.num_computed,
              std::min(num_tokens, kv.num_computed + budget)};
    if (work.end <= work.begin) return;
    bool room = ExtendTo(kv, work.end, plan);
    while (!room && ReclaimFrom(g + 1)) room = ExtendTo(kv, work.end, plan);
    if (!room) {
      if (kv.num_computed / kBlock < static_cast<int64_t>(kv.blocks.size()) &&
          blocks_.holders(kv.blocks[kv.num_computed / kBlock]) > 1) {
        return;  // no block for the copy that it would write to
      }
      work.end = std::min<int64_t>(work.end, static_cast<int64_t>(kv.blocks.size()) * kBlock);
      if (work.end <= work.begin) return;
    }
    work.draws = work.end == num_tokens;
    budget -= work.end - work.begin;
    chunks.push_back(work);
  };
  for (size_t g = 0; g < running_.size(); ++g) {
    RunningGroup& group = *running_[g];
    if (group.prompt_done) {
      for (const auto& s : group.sequences) {
        if (s->active && s->has_work() && !s->decodable()) {
          add(g, s.get(), s->kv, s->num_tokens());
        }
      }
      continue;
    }
    if (!group.has_work()) continue;
    if (group.prompt.blocks.empty() && budget > 0) {
      group.prompt.generation = generation_;
      group.prompt.name = ChainStart(generation_, group.request.adapter_id ^ group.request.kv_salt);
      FindPrefix(group.prompt, group.prompt_size() - 1,
                 [&](int64_t position) { return group.request.prompt[position]; });
      group.num_prompt_tokens_found = group.prompt.num_computed;
    }
    add(g, nullptr, group.prompt, group.prompt_size());
  }
  for (Sequence* s : ready_) {
    plan.work.push_back({s->group, s, s->kv.num_computed, s->num_tokens(), true});
  }
  plan.work.insert(plan.work.end(), chunks.begin(), chunks.end());
  for (Work& work : plan.work) {
    if (work.sequence != nullptr || !work.draws) continue;
    // After a recompute, members have tokens already and go on from those.
    for (const auto& s : work.group->sequences) work.draws &= s->completion.token_ids.empty();
  }
}

// Allocates blocks for tokens [0, num_tokens) and makes the next one writable. False when blocks
// run out; those allocated stay.
bool Scheduler::ExtendTo(Cached& kv, int64_t num_tokens, StepPlan& plan) {
  const size_t next = static_cast<size_t>(kv.num_computed / kBlock);
  if (next < kv.blocks.size() && blocks_.holders(kv.blocks[next]) > 1) {
    const std::optional<BlockId> copy = Allocate();
    if (!copy) return false;
    plan.copies.push_back({kv.blocks[next], *copy});
    blocks_.Release(kv.blocks[next]);
    kv.blocks[next] = *copy;
  }
  while (static_cast<int64_t>(kv.blocks.size()) < KvBlockPool::BlocksFor(num_tokens)) {
    const std::optional<BlockId> block = Allocate();
    if (!block) return false;
    kv.blocks.push_back(*block);
  }
  return true;
}

// Takes the KV of a member that waits, youngest group first, or of a prompt for which nobody but
// such members has a use.
bool Scheduler::ReclaimFromWaiting() {
  for (auto group = running_.rbegin(); group != running_.rend(); ++group) {
    for (const auto& s : (*group)->sequences) {
      if (!s->waits || !s->active) continue;
      Deactivate(*s);
      return true;
    }
    if ((*group)->has_work() || (*group)->prompt.blocks.empty()) continue;
    Drop((*group)->prompt);
    (*group)->prompt_done = false;
    return true;
  }
  return false;
}

// Takes KV from members that wait, and then from the youngest group that has any, down to
// running_[first_victim].
bool Scheduler::ReclaimFrom(size_t first_victim) {
  if (ReclaimFromWaiting()) {
    ++stats_.num_preemptions;
    overcommit_.OnPreempted();
    return true;
  }
  for (size_t g = running_.size(); g > first_victim; --g) {
    if (ReclaimFromGroup(*running_[g - 1])) return true;
  }
  return false;
}

// Takes the KV of one member, or of the prompt when no member has any.
bool Scheduler::ReclaimFromGroup(RunningGroup& group) {
  Sequence* victim = nullptr;
  for (const auto& s : group.sequences) {
    if (s->active && (victim == nullptr || s->num_tokens() <= victim->num_tokens()))
      victim = s.get();
  }
  if (victim != nullptr) {
    Deactivate(*victim);
    std::erase(ready_, victim);
  } else if (!group.prompt.blocks.empty()) {
    Drop(group.prompt);
    group.prompt_done = false;
  } else {
    return false;
  }
  ++stats_.num_preemptions;
  overcommit_.OnPreempted();
  return true;
}

void Scheduler::Computed(const StepPlan& plan) {
  for (const Work& work : plan.work) {
    RunningGroup& group = *work.group;
    if (work.sequence != nullptr) {
      Sequence& s = *work.sequence;
      s.kv.num_computed = work.end;
      PublishFull(s.kv, [&](int64_t position) { return s.TokenAt(position); });
      continue;
    }
    group.prompt.num_computed = work.end;
    PublishFull(group.prompt, [&](int64_t position) { return group.request.prompt[position]; });
    if (work.end == group.prompt_size()) Fork(group);
  }
}

// Gives the prompt's blocks to every unfinished member. The group keeps the full ones, for members
// that come back after a preemption.
void Scheduler::Fork(RunningGroup& group) {
  group.prompt_done = true;
  for (const auto& s : group.sequences) {
    if (!s->has_work()) continue;
    s->kv = group.prompt;
    for (const BlockId block : s->kv.blocks) blocks_.Share(block);
    s->active = true;
    s->found_prefix |= group.num_prompt_tokens_found > 0;
    NoteFound(*s);
  }
  const int64_t full = FullPromptBlocks(group.request);
  if (static_cast<int64_t>(group.prompt.blocks.size()) > full) {
    blocks_.Release(group.prompt.blocks.back());
    group.prompt.blocks.pop_back();
  }
  group.prompt.num_computed = full * kBlock;
}

// Takes over full blocks among the first `num_tokens` tokens that were computed before.
template <typename TokenAt>
void Scheduler::FindPrefix(Cached& kv, int64_t num_tokens, const TokenAt& token_at) {
  if (!limits_.prefix_cache || kv.generation != generation_) return;
  if (kv.num_named * kBlock != kv.num_computed) return;
  while ((kv.num_named + 1) * kBlock <= num_tokens) {
    std::array<int32_t, kBlock> ids;
    for (int64_t i = 0; i < kBlock; ++i) ids[i] = token_at(kv.num_named * kBlock + i);
    const BlockName name = NextName(kv.name, ids);
    const std::optional<BlockId> block = blocks_.Find(name);
    if (!block) {
      stats_.num_prefix_misses += num_tokens / kBlock - kv.num_named;
      return;
    }
    ++stats_.num_prefix_hits;
    KeepMostOutdated({blocks_.generation(*block), generation_}, kv.found);
    kv.blocks.push_back(*block);
    kv.name = name;
    kv.num_computed = ++kv.num_named * kBlock;
  }
}

// Names the blocks of the sequence that have become full, unless the weights changed since its
// first token was computed.
template <typename TokenAt>
void Scheduler::PublishFull(Cached& kv, const TokenAt& token_at) {
  if (!limits_.prefix_cache || kv.generation != generation_) return;
  while ((kv.num_named + 1) * kBlock <= kv.num_computed) {
    std::array<int32_t, kBlock> ids;
    for (int64_t i = 0; i < kBlock; ++i) ids[i] = token_at(kv.num_named * kBlock + i);
    kv.name = NextName(kv.name, ids);
    blocks_.Publish(kv.blocks[kv.num_named++], kv.name, kv.generation);
  }
}

Scheduler::Finished Scheduler::Finish(Sequence* sequence) {
  TANDEM_CHECK(!sequence->finished);
  RunningGroup* group = sequence->group;
  const GroupRequest& request = group->request;
  group->used_blocks +=
      MemberBlocks(request, static_cast<int64_t>(sequence->completion.token_ids.size()));
  Deactivate(*sequence);
  sequence->finished = true;
  Finished result{std::move(sequence->completion), --group->num_unfinished == 0};
  if (result.group_ended) {
    overcommit_.OnFinished(static_cast<double>(FullPromptBlocks(request) + group->used_blocks) /
                           static_cast<double>(std::max<int64_t>(1, WorstCaseBlocks(request))));
    Remove(group);
  }
  return result;
}

bool Scheduler::Abort(GroupKey key) {
  const auto queued = FindWaiting(key);
  if (queued != waiting_.end()) {
    waiting_.erase(queued);
    return true;
  }
  RunningGroup* group = FindRunning(key);
  if (group != nullptr) Remove(group);
  return group != nullptr;
}

void Scheduler::OnInstall(bool recompute) {
  ++generation_;
  blocks_.ForgetNames();
  for (const auto& group : running_) {
    // A group without a token has nothing to keep, so it starts over, all under one version.
    if (recompute || !group->prompt_done) FreeKv(*group);
  }
}

// A block for a group, recalling loans when no other is left.
std::optional<BlockId> Scheduler::Allocate() {
  std::optional<BlockId> block = blocks_.Allocate();
  for (; !block && !loans_.empty(); block = blocks_.Allocate()) {
    const std::shared_ptr<KvLoan> loan = std::move(loans_.back());
    loans_.pop_back();
    for (const BlockId lent : loan->blocks) blocks_.Release(lent);
    loan->blocks.clear();
    loan->recalled = true;
  }
  return block;
}

int64_t Scheduler::NumAvailable() const {
  int64_t available = blocks_.num_available();
  for (const auto& loan : loans_) available += static_cast<int64_t>(loan->blocks.size());
  return available;
}

std::shared_ptr<const KvLoan> Scheduler::Borrow(int64_t num_blocks) {
  if (blocks_.num_available() < num_blocks) return nullptr;
  auto loan = std::make_shared<KvLoan>();
  for (int64_t i = 0; i < num_blocks; ++i) loan->blocks.push_back(*blocks_.Allocate());
  loans_.push_back(loan);
  return loan;
}

void Scheduler::GiveBack(const std::shared_ptr<const KvLoan>& loan) {
  if (loan->recalled) return;
  for (const BlockId block : loan->blocks) blocks_.Release(block);
  std::erase(loans_, loan);
}

RunningGroup* Scheduler::FindRunning(GroupKey key) const {
  const auto found = std::ranges::find(running_, key, [](const auto& g) { return g->request.key; });
  return found == running_.end() ? nullptr : found->get();
}

void Scheduler::Drop(Cached& kv) {
  // From the end, so that the longest prefixes are the first to be evicted.
  for (auto block = kv.blocks.rbegin(); block != kv.blocks.rend(); ++block) blocks_.Release(*block);
  kv = Cached();
}

void Scheduler::Deactivate(Sequence& sequence) {
  Drop(sequence.kv);
  sequence.active = false;
}

void Scheduler::FreeKv(RunningGroup& group) {
  for (const auto& s : group.sequences) Deactivate(*s);
  Drop(group.prompt);
  group.prompt_done = false;
}

void Scheduler::Remove(RunningGroup* group) {
  FreeKv(*group);
  std::erase_if(running_, [group](const auto& g) { return g.get() == group; });
}

}  // namespace tandem::rollout
