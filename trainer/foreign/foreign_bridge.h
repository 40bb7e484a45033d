// ForeignBridge: the foreign servers of a run as rollout servers of our own contract. Each gets the
// two services of proto/ in this process, on a socket that only this user can reach, and calls to its
// address are routed there; so the trainer's client, publisher and scorer need to know nothing of
// other engines. Used by trainer.cc. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/credentials.h"
#include "trainer/foreign/foreign_server.h"

namespace tandem::trainer {

class ForeignBridge {
 public:
  // Serves those of `entries` (trainer.servers) that are foreign; null if none is.
  //   UNAVAILABLE  no socket could be made
  static absl::StatusOr<std::unique_ptr<ForeignBridge>> Start(
      const std::vector<std::string>& entries, const ForeignRun& run);

  // Ends calls in progress and removes the sockets. Callers of the bridge must be gone.
  ~ForeignBridge();
  ForeignBridge(const ForeignBridge&) = delete;
  ForeignBridge& operator=(const ForeignBridge&) = delete;

  // Makes `caller` reach the servers here. Call it before the caller is copied.
  void RouteTo(rpc::Caller* caller) const;

  // The deliveries to all servers since the last call.
  std::vector<ForeignDelivery> TakeDeliveries();

 private:
  struct Impl;
  explicit ForeignBridge(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::trainer
