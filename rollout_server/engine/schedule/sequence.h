// Sequence and RunningGroup: the state of a group while it runs, shared by scheduler and engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/engine/schedule/kv_block_pool.h"
#include "rollout_server/engine/schedule/stop_ids.h"

namespace tandem::rollout {

class StopMatcher;
struct RunningGroup;

// The KV of consecutive tokens: blocks in order, of which the first `num_computed` tokens are
// filled.
struct Cached {
  std::vector<BlockId> blocks;
  int64_t num_computed = 0;
  int64_t num_named = 0;    // full blocks that have names
  BlockName name;           // of the last of them
  uint64_t generation = 0;  // of the weights that computed the first token; named blocks have one
  std::optional<FoundKv> found;  // the most outdated of the blocks that were found by name
};

// One completion in progress.
struct Sequence {
  RunningGroup* group = nullptr;
  FinishedCompletion completion;      // grows token by token
  double last_token_at = 0;           // monotonic seconds
  std::shared_ptr<StopMatcher> stop;  // null without stop strings
  bool active = false;  // holds KV; false before the prompt is computed and when preempted
  bool finished = false;
  bool waits = false;         // between two turns, for ids: it has nothing to compute
  int32_t turn_begin = 0;     // token of the completion at which the turn under way begins
  int32_t num_streamed = 0;   // tokens of the completion that were told as they were drawn
  bool found_prefix = false;  // some of its KV was found, not computed
  Cached kv;

  const SamplingParams& sampling() const;
  int64_t num_tokens() const;  // of prompt and completion
  int32_t TokenAt(int64_t position) const;
  // It has tokens to compute, or will have as soon as it has KV.
  bool has_work() const { return !finished && !waits; }
  // All but the last token are computed, so the next step may sample.
  bool decodable() const { return active && has_work() && kv.num_computed == num_tokens() - 1; }
  // Tokens of the turn under way.
  int32_t turn_size() const { return completion.num_tokens() - turn_begin; }
};

struct RunningGroup {
  GroupRequest request;
  StopIds stop_ids;  // made by the engine, which knows the model's end tokens
  Cached prompt;     // once members have taken it over: its full blocks, for preempted members
  bool prompt_done = false;
  std::vector<std::unique_ptr<Sequence>> sequences;
  int64_t num_unfinished = 0;
  int64_t used_blocks = 0;              // of finished members, without the prompt's full ones
  int64_t num_prompt_tokens_found = 0;  // in the prefix index, when it was admitted

  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
  // False while all of its unfinished members wait between two turns.
  bool has_work() const {
    return std::ranges::any_of(sequences, [](const auto& one) { return one->has_work(); });
  }
};

inline const SamplingParams& Sequence::sampling() const {
  return group->request.SamplingOf(completion.index);
}

inline int64_t Sequence::num_tokens() const {
  return group->prompt_size() + static_cast<int64_t>(completion.token_ids.size());
}

inline int32_t Sequence::TokenAt(int64_t position) const {
  const int64_t prompt = group->prompt_size();
  return position < prompt ? group->request.prompt[position]
                           : completion.token_ids[position - prompt];
}

}  // namespace tandem::rollout
