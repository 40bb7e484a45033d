#include "rollout_server/engine/failed_groups.h"

#include <string>

#include "common/base/status_macros.h"

namespace tandem::rollout {

void FailedGroups::Add(const Sequence& sequence, GroupFailure cause, const absl::Status& why) {
  if (Has(sequence.group)) return;
  const FinishedCompletion& completion = sequence.completion;
  groups_.push_back(sequence.group);
  events_.push_back({sequence.group->request.key, cause,
                     DataLoss("the group failed (", GroupFailureName(cause),
                              ") and the server goes on: completion ", completion.index, ", token ",
                              completion.token_ids.size(), ": ", why.message())});
}

absl::Status FailedGroups::AddUndrawn(const Sequence& sequence, const absl::Status& why) {
  if (absl::IsDataLoss(why)) {
    Add(sequence, GroupFailure::kNonFiniteLogits, why);
  } else if (absl::IsFailedPrecondition(why)) {
    Add(sequence, GroupFailure::kNothingToDraw, why);
  } else {
    return why;
  }
  return absl::OkStatus();
}

}  // namespace tandem::rollout
