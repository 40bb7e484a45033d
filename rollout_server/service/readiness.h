// What a rollout server answers to /readyz and /livez. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/base/weight_version.h"
#include "common/observe/health.h"
#include "rollout_server/groups/ownership.h"

namespace tandem::rollout {

struct ReadinessFacts {
  bool draining = false;
  absl::Status failure;  // of the engine
  std::optional<Ownership::LiveClaim> claim;
  WeightVersion live;
  int64_t live_epoch = 0;  // the live weights were committed under it
};

// A server is ready when it neither drains nor has failed, and either no run owns it, or its
// weights are the owner's and as new as the owner's calls demand. The weights are the owner's once
// it has committed some under its epoch or has called for groups: a run proves by digests that a
// server has its weights before it calls for groups.
ProbeAnswer JudgeReadiness(const ReadinessFacts& facts);

// A server is live unless its engine was silent for `bound_seconds` while it had work.
ProbeAnswer JudgeLiveness(double silent_seconds, double bound_seconds);

}  // namespace tandem::rollout
