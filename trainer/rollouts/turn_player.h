// TurnPlayer: what answers the turns of a run's completions: its environments and tools. RolloutClient calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::rollout::v1 {
class GenerateGroupRequest;
class Turn;
}  // namespace tandem::rollout::v1

namespace tandem::trainer {

// The ids that follow a turn; none: the completion is finished.
struct TurnAnswer {
  std::vector<int32_t> token_ids;
};

// Thread-safe. Both methods return at once: they are called on the thread that reads the group.
class TurnPlayer {
 public:
  // Call it once, on any thread, at once or later. An error finishes the completion and is reported
  // with its group (FinishedGroup::failed_turns). After the group's call has ended it does nothing.
  using Reply = std::function<void(absl::StatusOr<TurnAnswer>)>;

  virtual ~TurnPlayer() = default;

  // A call for the group begins: episodes that an earlier call for it began are over, and its
  // completions begin anew.
  virtual void Begin(const rollout::v1::GenerateGroupRequest& request) = 0;

  // A completion of the group waits behind this turn.
  virtual void Play(const rollout::v1::GenerateGroupRequest& request, const rollout::v1::Turn& turn,
                    Reply reply) = 0;
};

}  // namespace tandem::trainer
