// CallEnd: how a call for a group ended, as the server said it beside the status: why it turned the
// call away, and when to come back. Used by rollout_client.cc. Thread-safe.
#ifndef TANDEM_TRAINER_CALL_END_H_
#define TANDEM_TRAINER_CALL_END_H_

#include "common/rpc/refusal.h"

namespace grpc {
class ClientContext;
}  // namespace grpc

namespace tandem::trainer {

struct CallEnd {
  rpc::Refusal refusal = rpc::Refusal::kNone;
  double retry_after_seconds = 0;

  // The server is well and has no room; that is no failed attempt. One from before refusals had
  // names says when to come back.
  bool is_busy() const {
    return rpc::IsBusy(refusal) || (refusal == rpc::Refusal::kNone && retry_after_seconds > 0);
  }
};

// Of a call that has finished.
CallEnd CallEndOf(const grpc::ClientContext& context);

}  // namespace tandem::trainer

#endif  // TANDEM_TRAINER_CALL_END_H_
