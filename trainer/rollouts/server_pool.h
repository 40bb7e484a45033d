// ServerPool: the rollout servers of a run, each with its number, its address and its connections.
// RolloutClient asks them for groups, ServerScorer for scores, and WeightPublisher pushes weights
// to them: all three find a server here by its number, which stays its own for the whole run. What
// state a server is in (lost, behind, ready) is RolloutClient's knowledge.
//
// Thread-safe. The pool only grows, so a handle is valid as long as the pool.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/rpc/caller_channel.h"
#include "common/rpc/credentials.h"

namespace tandem::trainer {

// Each kind of call has a connection of its own, so that a push does not queue behind completions.
struct ServerHandle {
  ServerHandle(const std::string& address, const rpc::Caller& caller)
      : groups(address, caller), scores(address, caller), weights(address, caller) {}
  const std::string& address() const { return groups.address(); }

  rpc::CallerChannel groups, scores, weights;
};

class ServerPool {
 public:
  // `addresses`: HOST:PORT of servers 0, 1, ... `caller` proves to each server who asks.
  explicit ServerPool(const std::vector<std::string>& addresses, const rpc::Caller& caller = {});

  // The number of the server at `address`; an address that is not known yet gets the next number.
  int Add(const std::string& address);

  int size() const;
  ServerHandle& at(int server) const;  // `server` < size()

 private:
  const rpc::Caller caller_;
  mutable Mutex mu_;
  std::vector<std::unique_ptr<ServerHandle>> servers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tandem::trainer
