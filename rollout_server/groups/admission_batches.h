// AdmissionBatches: holds back the groups of a deterministic batch until all have arrived, and
// releases them in group_id order, so that the batch composition does not depend on the order of
// arrival. Used by GroupRegistry.
//
// Pure: no clock, no thread. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "rollout_server/engine/schedule/group.h"

namespace tandem::rollout {

class AdmissionBatches {
 public:
  struct BatchRef {
    std::string run_id;
    int64_t batch_id = 0;
    int32_t num_groups = 1;
  };

  // Returns the groups to admit now, in group_id order: none while the batch is incomplete. A group
  // of a batch that was released before (its first call was lost) is admitted at once.
  //   INVALID_ARGUMENT  num_groups < 1, or not what the batch's first group said; the group is held
  //                     in the batch already
  absl::StatusOr<std::vector<GroupRequest>> Arrive(const BatchRef& batch, int64_t group_id,
                                                   GroupRequest request);

  // The group's caller is gone; the batch waits for another call for the group. False when it is
  // not held. A batch that holds no group any more only remembers which of its groups were aborted,
  // and only the latest kRememberedBatches such batches are kept, so that repeated calls and aborts
  // cannot fill the memory.
  bool Withdraw(const BatchRef& batch, int64_t group_id);

  // The group was aborted for good and counts as arrived. Returns the groups that this releases.
  std::vector<GroupRequest> Skip(const BatchRef& batch, int64_t group_id);

  // Forgets the batches of a run, except those that hold groups. The run starts over under a new
  // epoch, with the same numbers.
  void Forget(const std::string& run_id);

  // Number of batches that are remembered in any way.
  size_t size() const { return batches_.size() + released_.size(); }

  static constexpr size_t kRememberedBatches = 256;

 private:
  using Key = std::pair<std::string, int64_t>;  // run_id, batch_id
  struct Batch {
    int32_t num_groups = 0;
    std::map<int64_t, GroupRequest> held;  // by group_id
    std::set<int64_t> skipped;             // group_ids
  };

  std::vector<GroupRequest> ReleaseIfComplete(const Key& key);
  void NoteEmptied(const Key& key);

  std::map<Key, Batch> batches_;
  std::deque<Key> released_;  // the latest kRememberedBatches
  // Those of batches_ that hold no group but have aborted ones, oldest first; as many at most.
  std::deque<Key> emptied_;
};

}  // namespace tandem::rollout
