#include "cli/watch/process_status.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/watch/http_get.h"
#include "common/base/status_macros.h"
#include "common/rpc/grpc_call.h"
#include "proto/rollout.grpc.pb.h"

namespace tandem::cli {
namespace {

using Metrics = std::map<std::string, double>;

double Get(const Metrics& metrics, const std::string& series) {
  const auto found = metrics.find(series);
  return found == metrics.end() ? 0 : found->second;
}

std::string RoleOf(const Metrics& metrics) {
  const auto info = std::ranges::find_if(
      metrics, [](const auto& one) { return absl::StartsWith(one.first, "tandem_build_info{"); });
  if (info == metrics.end()) return "process";
  return absl::StrContains(info->first, "role=\"trainer\"") ? "trainer" : "rollout_server";
}

}  // namespace

Metrics ParseMetrics(std::string_view page) {
  Metrics metrics;
  const absl::string_view text(page.data(), page.size());
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const size_t space = line.rfind(' ');
    double value = 0;
    if (line[0] == '#' || space == absl::string_view::npos ||
        !absl::SimpleAtod(line.substr(space + 1), &value)) {
      continue;
    }
    metrics[std::string(line.substr(0, space))] = value;
  }
  return metrics;
}

std::string DescribeTrainer(const Metrics& metrics, double now) {
  const double last = Get(metrics, "tandem_trainer_last_step_timestamp_seconds");
  const double ready = Get(metrics, "tandem_trainer_servers{state=\"ready\"}");
  return absl::StrFormat(
      "step %.0f of %.0f%s  waits for rollouts %.0f%% of a step  staleness mean %.2f, max %.0f  "
      "servers %.0f of %.0f ready",
      Get(metrics, "tandem_trainer_step"), Get(metrics, "tandem_trainer_planned_steps"),
      last > 0 ? absl::StrFormat(", the last %.1f s ago", std::max(0.0, now - last)) : ", none yet",
      100 * Get(metrics, "tandem_trainer_rollout_wait_ratio"),
      Get(metrics, "tandem_trainer_staleness_mean_versions"),
      Get(metrics, "tandem_trainer_staleness_max_versions"), ready,
      ready + Get(metrics, "tandem_trainer_servers{state=\"not_ready\"}"));
}

std::string DescribeServer(const Metrics& metrics) {
  return absl::StrFormat(
      "version %.0f  groups %.0f running, %.0f queued  KV %.0f/%.0f",
      Get(metrics, "tandem_live_weight_version"), Get(metrics, "tandem_groups_running"),
      Get(metrics, "tandem_groups_queued"), Get(metrics, "tandem_kv_used_tokens"),
      Get(metrics, "tandem_kv_capacity_tokens"));
}

absl::StatusOr<std::string> AskObservePort(const std::string& address, double timeout_seconds) {
  TANDEM_ASSIGN_OR_RETURN(const HttpAnswer page, HttpGet(address, "/metrics", timeout_seconds));
  TANDEM_ASSIGN_OR_RETURN(const HttpAnswer ready, HttpGet(address, "/readyz", timeout_seconds));
  const Metrics metrics = ParseMetrics(page.body);
  const std::string role = RoleOf(metrics);
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return absl::StrCat(
      role, "  ", address, "  ",
      role == "trainer" ? DescribeTrainer(metrics, now) : DescribeServer(metrics),
      ready.code == 200 ? "  ready: " : "  not ready: ", absl::StripAsciiWhitespace(ready.body));
}

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
