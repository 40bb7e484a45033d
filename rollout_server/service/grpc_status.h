// absl::Status as gRPC's: the same codes, unchanged. Used by the services.
#ifndef TANDEM_ROLLOUT_SERVER_SERVICE_GRPC_STATUS_H_
#define TANDEM_ROLLOUT_SERVER_SERVICE_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace tandem::rollout {

inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.raw_code()), std::string(status.message())};
}

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_SERVICE_GRPC_STATUS_H_
