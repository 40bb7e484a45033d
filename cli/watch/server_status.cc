#include "cli/watch/server_status.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/rollout.grpc.pb.h"

namespace tandem::cli {

absl::StatusOr<std::string> AskServer(const std::string& address, double timeout_seconds,
                                      const rpc::Caller& caller) {
  const auto stub =
      rollout::v1::RolloutService::NewStub(grpc::CreateChannel(address, caller.credentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000)));
  rollout::v1::GetInfoResponse info;
  const grpc::Status status = stub->GetInfo(&context, rollout::v1::GetInfoRequest(), &info);
  if (!status.ok()) {
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                        absl::StrCat(address, ": ", status.error_message()));
  }
  std::string line =
      absl::StrCat(address, "  ", info.model_type(), " ", info.dtype(), " ", info.numerics(), " (",
                   info.instruction_set(), ")  version ", info.live_weight_version(), " (epoch ",
                   info.weight_epoch(), ")  groups ", info.num_groups_running(), " running, ",
                   info.num_groups_queued(), " queued of ", info.max_queued_groups(), "  KV ",
                   info.kv_used_tokens(), "/", info.kv_capacity_tokens(), " tokens  sampled ",
                   info.num_tokens_sampled(), "  owner ",
                   info.owner_run_id().empty() ? "none" : info.owner_run_id());
  if (info.draining()) line += "  draining";
  if (info.paused()) line += "  paused";
  if (!info.injected().empty()) {
    absl::StrAppend(&line, "  INJECTED FAULTS: ", absl::StrJoin(info.injected(), "; "));
  }
  return line;
}

}  // namespace tandem::cli
