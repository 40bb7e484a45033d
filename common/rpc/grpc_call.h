// What gRPC calls share on both of their ends: statuses as Abseil's and back (the codes are the
// same numbers), and deadlines. Keeps gRPC's headers out of those that include this one. Pure.
#ifndef TANDEM_COMMON_RPC_GRPC_CALL_H_
#define TANDEM_COMMON_RPC_GRPC_CALL_H_

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace tandem::rpc {

grpc::Status ToGrpc(const absl::Status& status);

// The same code; the message of an error is "WHERE: MESSAGE".
absl::Status FromGrpc(const grpc::Status& status, const std::string& where);

absl::StatusCode CodeOf(const grpc::Status& status);

// The call may take so long from now on.
void SetDeadline(grpc::ClientContext& context, absl::Duration from_now);

}  // namespace tandem::rpc

#endif  // TANDEM_COMMON_RPC_GRPC_CALL_H_
