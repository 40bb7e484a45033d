// TurnPlayer: what answers the turns of one group's completions, an environment or tools.
// RolloutClient calls it (group_stream.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/environments/episode.h"

namespace tandem::rollout::v1 {
class Completion;
}

namespace tandem::trainer {

// A turn of a completion that has ended.
struct PlayedTurn {
  int32_t index = 0;  // of the completion
  int32_t turn = 0;   // from 1
  std::string text;   // without the stop token
  bool ended_by_token = false;
  bool was_cut = false;         // by a limit of tokens
  bool is_last = false;         // no further turn can follow: the answer's ids are of no use
  int32_t num_tokens_left = 0;  // how many ids may follow
};

// The ids that follow a turn; none: the completion is finished.
struct TurnAnswer {
  std::vector<int32_t> token_ids;
};

// Thread-safe. Begin and Play return at once: they are called on the thread that reads the group.
class TurnPlayer {
 public:
  // Call it once, on any thread, at once or later. An error finishes the completion.
  using Reply = std::function<void(absl::StatusOr<TurnAnswer>)>;

  virtual ~TurnPlayer() = default;

  // A call for the group begins: episodes that an earlier call for it began are over, and its
  // completions begin anew.
  virtual void Begin(int32_t first_completion, int32_t num_completions) = 0;

  // Each turn of each completion, in order, when the one before was answered.
  virtual void Play(PlayedTurn turn, Reply reply) = 0;

  // What became of `completion`, whose turns were all answered.
  virtual std::shared_ptr<const Episode> Outcome(const rollout::v1::Completion& completion) = 0;
};

}  // namespace tandem::trainer
