// What blocking calls to a rollout server share: a deadline, and errors that name the server.
#ifndef TANDEM_DEPLOY_TANDEM_SERVER_CALL_H_
#define TANDEM_DEPLOY_TANDEM_SERVER_CALL_H_

#include <string>

#include "absl/status/status.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace tandem::front {

void SetDeadline(grpc::ClientContext& context, double seconds);

// The same code; the message opens with `address`.
absl::Status FromGrpc(const grpc::Status& status, const std::string& address);

}  // namespace tandem::front

#endif  // TANDEM_DEPLOY_TANDEM_SERVER_CALL_H_
