// Rendezvous: the ranks of one launch of a job find each other, and nobody else does.
//
// Rank 0 holds the store. The others come when it is up; each says its name and waits until all
// have come. A launch is known by job, launch id and restart: a process of another launch is told
// so and does not join, and a rank that died and was started alone does not join those who still
// wait for the dead one.
#ifndef TANDEM_COMMON_RENDEZVOUS_RENDEZVOUS_H_
#define TANDEM_COMMON_RENDEZVOUS_RENDEZVOUS_H_

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
  std::string job;  // what all ranks of a run agree on, for instance a digest of its configuration
  absl::Duration deadline = absl::Minutes(5);
  // Told who is missing: after 5 s, then after twice as long again and again.
  std::function<void(const std::string&)> warn = [](const std::string&) {};
};

struct Rendezvous {
  Store store;                       // under a prefix of this launch
  std::vector<std::string> members;  // [world_size] "host:pid" of each rank
};

// All ranks call it. Waits.
//   DEADLINE_EXCEEDED    not all came; the message names the missing ranks, or the place where
//                        nobody listens
//   FAILED_PRECONDITION  the place belongs to a later launch, or to another one until the deadline;
//                        or another process has this rank
//   UNAVAILABLE          rank 0's port is taken, or rank 0 went away
absl::StatusOr<Rendezvous> Meet(const RendezvousOptions& options);

// This process in messages: "host:pid".
std::string SelfName();

// "rank 3", "ranks 1, 2 and 7", "ranks 1, 2, 3 and 12 more".
std::string RanksText(const std::vector<int>& ranks);

}  // namespace tandem::comm

#endif  // TANDEM_COMMON_RENDEZVOUS_RENDEZVOUS_H_
