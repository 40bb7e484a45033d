#include "rollout_server/service/admission.h"

#include <limits>
#include <optional>

#include "common/base/status_macros.h"

namespace tandem::rollout {

absl::Status AdmitGroup(const ServiceParts& parts, const CallerProof& who, Standing standing,
                        GroupSubmission* submission) {
  if (standing == Standing::kNotOwner) {
    // While a run owns the server, groups of clients without ownership wait behind the owner's
    // groups, and get half of the queue and of the memory.
    submission->request.priority = std::numeric_limits<int32_t>::min();
    submission->yields = true;
  }
  submission->unowned = standing == Standing::kUnowned;
  TANDEM_RETURN_IF_ERROR(parts.engine->Validate(submission->request));
  parts.ownership->NoteAsked(who, submission->min_weight_version);
  const int64_t live = parts.weights->live()->version.value;
  if (live < submission->min_weight_version) {
    return FailedPrecondition("live weights are version ", live, ", the call wants at least ",
                              submission->min_weight_version);
  }
  submission->live_version = live;
  return absl::OkStatus();
}

void PutOthersBehindTheOwner(const ServiceParts& parts) {
  const std::optional<Ownership::LiveClaim> claim = parts.ownership->claim();
  if (claim) parts.groups->PutOthersBehind(claim->run_id, claim->caller);
}

}  // namespace tandem::rollout
