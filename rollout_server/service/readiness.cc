#include "rollout_server/service/readiness.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::rollout {

ProbeAnswer JudgeReadiness(const ReadinessFacts& facts) {
  if (facts.draining) return {false, "draining"};
  if (!facts.failure.ok()) {
    return {false, absl::StrCat("the engine failed: ", std::string(facts.failure.message()))};
  }
  const std::string version = absl::StrCat("version ", facts.live.value);
  if (!facts.claim) return {true, absl::StrCat(version, "; no run owns this server")};
  const std::string owner = absl::StrCat("run '", facts.claim->run_id, "'");
  if (facts.live_epoch != facts.claim->epoch && !facts.claim->has_asked) {
    return {false,
            absl::StrCat(owner, " owns this server and has committed no weights yet under epoch ",
                         facts.claim->epoch)};
  }
  const int64_t wanted = facts.claim->highest_min_version;
  if (facts.live.value < wanted) {
    return {false, absl::StrCat(version, " is live, and ", owner, " asks for at least ", wanted)};
  }
  return {true, absl::StrCat(version, " of ", owner)};
}

ProbeAnswer JudgeLiveness(double silent_seconds, double bound_seconds) {
  if (silent_seconds < bound_seconds) return {true, "the engine moves"};
  return {false, absl::StrFormat("the engine has work and did not move for %.1f s "
                                 "(server.liveness_seconds: %.1f)",
                                 silent_seconds, bound_seconds)};
}

}  // namespace tandem::rollout
