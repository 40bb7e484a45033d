// AdmissionBatches: holds the groups of a deterministic batch back until all are here, then
// releases them in group_id order, so that what runs together does not depend on arrival. Used by
// GroupRegistry.
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

  // The group's caller is gone; its place waits for it to be asked for again. False: not held. A
  // batch that holds nothing any more remembers only which of its groups were aborted, and of such
  // batches the latest kRememberedBatches are kept: whoever asks and aborts for ever fills nothing.
  bool Withdraw(const BatchRef& batch, int64_t group_id);

  // The group was aborted for good: it counts as arrived. Returns what this releases.
  std::vector<GroupRequest> Skip(const BatchRef& batch, int64_t group_id);

  // Forgets the batches of a run, but for those that hold groups: it starts over under a new epoch,
  // with the same numbers.
  void Forget(const std::string& run_id);

  // Batches of which anything is known.
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
  // Of batches_, those that hold nothing but have aborted groups, oldest first; as many.
  std::deque<Key> emptied_;
};

}  // namespace tandem::rollout
