// Sequence and RunningGroup: what the scheduler and the engine know of a group while it runs.
#pragma once

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

// The KV of a row of tokens: blocks in order, of which the first `num_computed` tokens are filled.
struct Cached {
  std::vector<BlockId> blocks;
  int64_t num_computed = 0;
  int64_t num_named = 0;  // full blocks whose name is in the chain
  BlockName name;         // of the last of them
  uint64_t generation =
      0;  // of the weights that computed the first token; names need one generation
  std::optional<FoundKv> found;  // of the blocks that were found by their names, the most outdated
};

// One completion in progress.
struct Sequence {
  RunningGroup* group = nullptr;
  FinishedCompletion completion;      // grows token by token
  double last_token_at = 0;           // monotonic seconds
  std::shared_ptr<StopMatcher> stop;  // null without stop strings
  bool active = false;  // holds KV; false before the prompt is computed and when preempted
  bool finished = false;
  bool found_prefix = false;  // some of its KV was found, not computed
  Cached kv;

  int64_t num_tokens() const;  // prompt and drawn
  int32_t TokenAt(int64_t position) const;
  // All but the last token are computed: the next step may draw.
  bool decodable() const { return active && !finished && kv.num_computed == num_tokens() - 1; }
};

struct RunningGroup {
  GroupRequest request;
  StopIds stop_ids;  // the engine's to make, which knows the model's end tokens
  Cached
      prompt;  // until members have taken it over; then its full blocks, for members to come back
  bool prompt_done = false;
  std::vector<std::unique_ptr<Sequence>> sequences;
  int64_t num_unfinished = 0;
  int64_t used_blocks = 0;              // of finished members, without the prompt's full ones
  int64_t num_prompt_tokens_found = 0;  // in the prefix index, when it was admitted

  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
};

inline int64_t Sequence::num_tokens() const {
  return group->prompt_size() + static_cast<int64_t>(completion.token_ids.size());
}

inline int32_t Sequence::TokenAt(int64_t position) const {
  const int64_t prompt = group->prompt_size();
  return position < prompt ? group->request.prompt[position]
                           : completion.token_ids[position - prompt];
}

}  // namespace tandem::rollout
