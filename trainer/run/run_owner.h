// RunOwner: what makes a run the same run to its rollout servers. The id is a name that everybody
// may learn; the secret (common/rpc/caller_secret.h) is known to the run alone, and servers do what
// an owner asks only for who shows it. Kept in RUN/owner, so that a trainer that is started again
// gets its servers back at once. Used by trainer.cc.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tandem::trainer {

struct RunOwner {
  std::string run_id;  // NAME-RANDOM
  std::string secret;
};

// The owner in `path`, where `resumed` and a whole one is there; else a new one, which is written
// to `path`, readable by its user alone. A file that makes no sense is replaced, with a warning:
// the servers then come back when the lease of the process before has ended.
//   UNAVAILABLE  it cannot be written
absl::StatusOr<RunOwner> OpenRunOwner(const std::string& path, const std::string& run_name,
                                      bool resumed);

}  // namespace tandem::trainer
