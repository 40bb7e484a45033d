// RewardQueue: groups that wait for their rewards (stage 3), so that the loop goes on collecting
// while others are judged. The loop submits a finished group and later delivers those whose rewards
// are there; a group of built-in components alone is delivered inside Submit. Used by trainer.cc
// and evaluation.cc, which share its scorers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "trainer/rewards/rewards.h"

namespace tandem::trainer {

// Use from one thread; rewards arrive on others.
class RewardQueue {
 public:
  // What becomes of a group when its rewards are there, in order of its inputs. Called by Deliver
  // or Submit, on the thread that calls those.
  using Done = std::function<absl::Status(std::vector<Reward>)>;

  // `wake` is called on other threads whenever a group can be delivered; it must not call back.
  // `rewards` must outlive it.
  RewardQueue(RewardFunction* rewards, std::function<void()> wake);
  ~RewardQueue();  // Cancel
  RewardQueue(const RewardQueue&) = delete;
  RewardQueue& operator=(const RewardQueue&) = delete;

  // Asks for the rewards of a group. The texts are copied if anybody else is asked. Errors are
  // those of `done`, where it is called at once.
  absl::Status Submit(const std::vector<RewardInput>& inputs, Done done);

  // Hands out the groups whose rewards are there, until `done` of one fails.
  absl::Status Deliver();

  // Waits until a group can be delivered, for at most `timeout`.
  void WaitFor(std::chrono::milliseconds timeout);

  // Groups without rewards yet, or not delivered. While there is no room, the caller takes no more
  // finished groups: it bounds the texts in memory.
  int64_t num_open() const;
  bool HasRoom() const { return num_open() < kMostGroups; }
  static constexpr int64_t kMostGroups = 4096;

  // Gives up all groups: their `done` is never called. Scorers end soon, and give no more rewards.
  void Cancel();

  // What happened since the last call; nothing where no component asks anybody else.
  RewardNumbers TakeNumbers();
  std::vector<RewardEvent> TakeEvents();
  bool is_external() const { return rewards_->is_external(); }
  // As that of RewardTally.
  double unanswered_until() const;

 private:
  struct State;

  RewardFunction* const rewards_;
  const std::shared_ptr<State> state_;  // shared with the callbacks of questions under way
};

}  // namespace tandem::trainer
