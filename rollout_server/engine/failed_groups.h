// FailedGroups: the groups that fail in one step, while the engine and the other groups go on. Use
// from the engine thread only.
#pragma once

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "rollout_server/engine/schedule/group.h"
#include "rollout_server/engine/schedule/sequence.h"

namespace tandem::rollout {

class FailedGroups {
 public:
  // The group of this sequence fails at its next token. Only a group's first failure counts.
  void Add(const Sequence& sequence, GroupFailure cause, const absl::Status& why);

  // The same when sampling failed with an error of SampleToken. Any other error is returned: it is
  // the engine's and not this group's.
  absl::Status AddUndrawn(const Sequence& sequence, const absl::Status& why);

  bool Has(const RunningGroup* group) const {
    return std::ranges::find(groups_, group) != groups_.end();
  }

  const std::vector<GroupFailed>& events() const { return events_; }

 private:
  std::vector<const RunningGroup*> groups_;
  std::vector<GroupFailed> events_;
};

}  // namespace tandem::rollout
