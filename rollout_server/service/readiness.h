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

// Ready: neither draining nor failed, and either owned by no run, or with weights that are the
// owner's and new enough for what it asked. They are its own once it has committed some under its
// epoch, or asks for groups: a run proves by digests that a server has its weights before it asks.
ProbeAnswer JudgeReadiness(const ReadinessFacts& facts);

// Live: the engine was not silent for as long as `bound_seconds` while it had work.
ProbeAnswer JudgeLiveness(double silent_seconds, double bound_seconds);

}  // namespace tandem::rollout
