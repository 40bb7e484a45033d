// RankOrders: what rank 0, which runs the loop, has the other ranks do: train on the same groups,
// score, take the same weights, give their parts of weights and optimizer state, end. Between
// orders the others wait as long as rank 0 collects rollouts.
//
// An order's head (what, and how many bytes) goes through the store, which can be waited on without
// a deadline; its bytes go through the collective.
#ifndef TANDEM_TRAINER_RANKS_REMOTE_LEARNER_H_
#define TANDEM_TRAINER_RANKS_REMOTE_LEARNER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/observe/heartbeat.h"
#include "common/process/stop_signal.h"
#include "common/rendezvous/store.h"
#include "trainer/ranks/learner.h"

namespace tandem::comm {
class Collective;
}

namespace tandem::trainer {

// The ranks that train together; all of it outlives what is made with it.
struct Ranks {
  int rank = 0, size = 1;
  comm::Collective* group = nullptr;
  comm::Store store;
  // How long rank 0 may be silent while the others wait for an order.
  absl::Duration patience = absl::Minutes(1);
  bool shard_parameters = false;  // what each holds of the weights is a part
};

// Rank 0: `own`, with the work done by all. Thread-safe as far as it is read from. When it is
// destroyed the others end.
std::unique_ptr<Learner> LeadRanks(std::unique_ptr<Learner> own, const Ranks& ranks);

// Whether a signal asked another rank to stop, for rank 0 to stop all. Errors of the store.
absl::StatusOr<bool> StopAsked(const Ranks& ranks);

// The others: does as rank 0 says until it says to end (OK). `stop` is passed on to rank 0.
// `heartbeat` rests while no order is worked on.
//   UNAVAILABLE  rank 0 is gone or silent, or another rank is lost
//   CANCELLED    `stop` was requested and rank 0 said nothing for the time of its patience
absl::Status FollowOrders(Learner& own, const Ranks& ranks, const StopSignal& stop,
                          Heartbeat& heartbeat);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_RANKS_REMOTE_LEARNER_H_
