#include "common/rpc/grpc_call.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"

namespace tandem::rpc {

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::Status FromGrpc(const grpc::Status& status, const std::string& where) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(CodeOf(status), absl::StrCat(where, ": ", status.error_message()));
}

absl::StatusCode CodeOf(const grpc::Status& status) {
  return static_cast<absl::StatusCode>(status.error_code());
}

void SetDeadline(grpc::ClientContext& context, absl::Duration from_now) {
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(from_now));
}

}  // namespace tandem::rpc
