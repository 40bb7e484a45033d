// Rendezvous: lets the ranks of one launch of a job find each other, and keeps processes of other
// launches out.
//
// Rank 0 holds the store. The other ranks connect when it is up. Each rank announces its name and
// waits until all have come. A launch is identified by job, launch id and restart count. A process
// of another launch gets an error that says so. A rank that died and was restarted alone does not
// join ranks that still wait for its predecessor.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rendezvous/rank_environment.h"
#include "common/rendezvous/store.h"

namespace tandem::comm {

struct RendezvousOptions {
  RankEnvironment self;
  std::string job;  // the same at all ranks of a run, for instance a digest of its configuration
  absl::Duration deadline = absl::Minutes(5);
  // Called with the ranks that are missing: after 5 s, and then each time the wait has doubled.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

struct Rendezvous {
  Store store;                       // below a prefix for this launch
  std::vector<std::string> members;  // [world_size] "host:pid" of each rank
};

// Blocks until all ranks have called it.
//   DEADLINE_EXCEEDED    not all ranks came; the message names them, or the address where nobody
//                        listens
//   FAILED_PRECONDITION  the address belongs to a later launch, or belonged to another launch until
//                        the deadline, or another process has this rank
//   UNAVAILABLE          rank 0's port is taken, or rank 0 went away
absl::StatusOr<Rendezvous> Meet(const RendezvousOptions& options);

// The name of this process in messages: "host:pid".
std::string SelfName();

// "rank 3", "ranks 1, 2 and 7", "ranks 1, 2, 3 and 12 more".
std::string RanksText(const std::vector<int>& ranks);

}  // namespace tandem::comm
