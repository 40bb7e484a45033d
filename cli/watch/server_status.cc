#include "cli/watch/server_status.h"

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_call.h"
#include "proto/rollout.grpc.pb.h"

namespace tandem::cli {

absl::StatusOr<std::string> AskServer(const std::string& address, double timeout_seconds,
                                      const rpc::Caller& caller) {
  const auto stub =
      rollout::v1::RolloutService::NewStub(grpc::CreateChannel(address, caller.credentials()));
  grpc::ClientContext context;
  rpc::SetDeadline(context, absl::Seconds(timeout_seconds));
  rollout::v1::GetInfoResponse info;
  TANDEM_RETURN_IF_ERROR(rpc::FromGrpc(stub->GetInfo(&context, {}, &info), address));
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
