#include "rollout_server/engine/failed_groups.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace tandem::rollout {

void FailedGroups::Add(const Sequence& sequence, GroupFailure cause, const absl::Status& why) {
  if (Has(sequence.group)) return;
  const FinishedCompletion& completion = sequence.completion;
  groups_.push_back(sequence.group);
  events_.push_back({sequence.group->request.key, cause,
                     absl::DataLossError(absl::StrCat(
                         "the group failed (", std::string(GroupFailureName(cause)),
                         ") and the server goes on: completion ", completion.index, ", token ",
                         completion.token_ids.size(), ": ", why.message()))});
}

void FailedGroups::AddUndrawn(const Sequence& sequence, const absl::Status& why) {
  Add(sequence,
      absl::IsFailedPrecondition(why) ? GroupFailure::kNothingToDraw
                                      : GroupFailure::kNonFiniteLogits,
      why);
}

}  // namespace tandem::rollout
