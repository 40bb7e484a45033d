// CallEnd: how a call to a rollout server ended, and what that says: to ask again later, to give
// up, or that the server is lost. One judgement for groups and for scores. Used by
// rollout_client.cc, server_scorer.cc and drift_monitor.cc.
#pragma once

#include "absl/status/status.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace tandem::trainer {

struct CallEnd {
  absl::Status status;             // with the name of a refusal (rpc::RefusalOf)
  double retry_after_seconds = 0;  // 0: the server did not say

  // The server is healthy and has no capacity now, which is no failed attempt. A server of a
  // version without named refusals is busy when it says when to ask again.
  bool is_busy() const;
};

// How a call that has finished ended, with what its trailing metadata says.
CallEnd EndOf(const grpc::ClientContext& context, const grpc::Status& status);

// Whether the same call would be refused again, by this server or another of its kind.
bool IsImpossible(const absl::Status& status);

// The server answered by itself and goes on: the fault is of this call. It is not so of a server
// that is gone, that did not answer in time, or that is broken.
bool ServerIsFine(const absl::Status& status);

}  // namespace tandem::trainer
