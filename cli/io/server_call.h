// What blocking calls to a rollout server share: a deadline, and errors that name the server.
#ifndef TANDEM_CLI_IO_SERVER_CALL_H_
#define TANDEM_CLI_IO_SERVER_CALL_H_

#include <string>

#include "absl/status/status.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace tandem::cli {

void SetDeadline(grpc::ClientContext& context, double seconds);

// The same code; the message opens with `address`.
absl::Status FromGrpc(const grpc::Status& status, const std::string& address);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_IO_SERVER_CALL_H_
