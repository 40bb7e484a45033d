// Who is let in: the checks that every call for a group passes, whatever protocol it came by.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rollout_server/groups/group_call.h"
#include "rollout_server/groups/ownership.h"
#include "rollout_server/service/services.h"

namespace tandem::rollout {

// Completes a submission whose caller CheckUser has let in as `standing`: its caller, its place
// behind the owner's groups, and the live version.
//   errors of EngineThread::Validate
//   FAILED_PRECONDITION  live weights are older than submission->min_weight_version
absl::Status AdmitGroup(const ServiceParts& parts, const CallerProof& who, Standing standing,
                        GroupSubmission* submission);

// A run may have claimed the server while a group that was let in as unowned was on its way into the
// registry, too late for the claim to find it there. Call it after Join.
void PutOthersBehindTheOwner(const ServiceParts& parts);

}  // namespace tandem::rollout
