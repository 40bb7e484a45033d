// Sequence and RunningGroup: what the scheduler and the engine know of a group while it runs.
#ifndef TANDEM_ROLLOUT_SERVER_ENGINE_SEQUENCE_H_
#define TANDEM_ROLLOUT_SERVER_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "rollout_server/engine/group.h"
#include "rollout_server/engine/kv_block_pool.h"

namespace tandem::rollout {

class StopMatcher;
struct RunningGroup;

// One completion in progress.
struct Sequence {
  RunningGroup* group = nullptr;
  std::vector<BlockId> blocks;            // block table; covers every computed token
  FinishedCompletion completion;          // grows token by token
  std::shared_ptr<StopMatcher> stop;      // null without stop strings
  bool decodable = false;                 // its last token waits to be computed
  bool finished = false;

  // Position of the token the next decode step computes: prompt + drawn tokens - 1.
  int64_t next_position() const;
};

struct RunningGroup {
  GroupRequest request;
  int64_t num_prompt_computed = 0;
  std::vector<BlockId> prompt_blocks;  // until StartMembers
  std::vector<std::unique_ptr<Sequence>> sequences;
  int64_t num_unfinished = 0;
  int64_t reserved_blocks = 0;

  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
};

inline int64_t Sequence::next_position() const {
  return group->prompt_size() + static_cast<int64_t>(completion.token_ids.size()) - 1;
}

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_ENGINE_SEQUENCE_H_
