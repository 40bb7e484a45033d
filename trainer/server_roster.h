// ServerRoster: who the rollout servers of a run are at the moment: new addresses of
// trainer.servers become servers of all who talk to them, those that are no longer named are
// retired once they are lost. Used by trainer.cc, from its thread.
#pragma once

#include <set>
#include <string>

#include "absl/status/status.h"
#include "trainer/rollouts/rollout_client.h"
#include "trainer/rollouts/server_lookup.h"
#include "trainer/rollouts/server_scorer.h"
#include "trainer/weight_push/weight_publisher.h"

namespace tandem::trainer {

// Server i of `client`, `publisher` and `scorer` is the same: they are given their servers here
// alone. All must outlive this object.
class ServerRoster {
 public:
  ServerRoster(const ServerLookup* lookup, RolloutClient* client, WeightPublisher* publisher,
               ServerScorer* scorer)
      : lookup_(lookup), client_(client), publisher_(publisher), scorer_(scorer) {}

  // Quick; what it changed is an event of the client.
  void Update();

 private:
  const ServerLookup* const lookup_;
  RolloutClient* const client_;
  WeightPublisher* const publisher_;
  ServerScorer* const scorer_;
  std::string problems_;   // as logged last
  std::set<int> leaving_;  // retired, and perhaps still at work
};

}  // namespace tandem::trainer
