#include "rollout_server/service/server_metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "common/base/clock.h"
#include "common/tensor/machine_limits.h"

namespace tandem::rollout {
namespace {

constexpr double kWindowSeconds = 1;
// The usual outcomes, whose counters exist from the start. Others appear when they first happen.
constexpr absl::StatusCode kCallOutcomes[] = {absl::StatusCode::kOk,
                                              absl::StatusCode::kCancelled,
                                              absl::StatusCode::kAborted,
                                              absl::StatusCode::kDeadlineExceeded,
                                              absl::StatusCode::kUnavailable,
                                              absl::StatusCode::kResourceExhausted,
                                              absl::StatusCode::kInternal,
                                              absl::StatusCode::kDataLoss,
                                              absl::StatusCode::kFailedPrecondition,
                                              absl::StatusCode::kInvalidArgument};
constexpr absl::StatusCode kCommitFailures[] = {absl::StatusCode::kDataLoss,
                                                absl::StatusCode::kFailedPrecondition,
                                                absl::StatusCode::kInternal};

std::string Label(absl::StatusCode code) {
  return absl::AsciiStrToLower(absl::StatusCodeToString(code));
}

Counter* Calls(MetricsRegistry* registry, absl::StatusCode code) {
  return registry->GetCounter("tandem_requests_total", "GenerateGroup calls by how they ended.",
                              {{"outcome", Label(code)}});
}

Counter* FailedGroups(MetricsRegistry* registry, GroupFailure cause) {
  return registry->GetCounter("tandem_groups_failed_total",
                              "Groups that ended by themselves while the server went on.",
                              {{"cause", std::string(GroupFailureName(cause))}});
}

Counter* CommitFailures(MetricsRegistry* registry, absl::StatusCode code) {
  return registry->GetCounter("tandem_weight_update_failures_total",
                              "Weight commits refused or failed.", {{"reason", Label(code)}});
}

}  // namespace

ServerMetrics::ServerMetrics(MetricsRegistry* registry, const MachineLimits& limits)
    : registry_(registry), limits_(limits) {
  for (const absl::StatusCode code : kCallOutcomes) Calls(registry, code);
  for (const absl::StatusCode code : kCommitFailures) CommitFailures(registry, code);
  for (size_t cause = 0; cause < kNumGroupFailures; ++cause) {
    groups_failed_[cause] = FailedGroups(registry, static_cast<GroupFailure>(cause));
  }
  registry
      ->GetGauge("tandem_limit_read_bytes_per_second",
                 "Memory bandwidth, measured when the model was loaded.")
      ->Set(limits.read_bytes_per_second);
  registry
      ->GetGauge("tandem_limit_flops_per_second", "Operations, measured when the model was loaded.")
      ->Set(std::max(limits.flops_per_second, limits.bf16_flops_per_second));
}

void ServerMetrics::OnStats(const EngineStats& stats) {
  const auto add = [&](Counter* counter, auto EngineStats::*total) {
    counter->Add(static_cast<double>(stats.*total - seen_.*total));
  };
  add(step_seconds_, &EngineStats::step_seconds);
  const MachineWork work = stats.step_work - seen_.step_work;
  step_bytes_->Add(work.bytes);
  step_flops_->Add(work.operations());
  add(sampled_tokens_, &EngineStats::num_tokens_sampled);
  add(given_tokens_, &EngineStats::num_tokens_given);
  completions_waiting_->Set(static_cast<double>(stats.num_completions_waiting));
  add(prompt_tokens_, &EngineStats::num_prompt_tokens_computed);
  add(preemptions_, &EngineStats::num_preemptions);
  add(prefix_hits_, &EngineStats::num_prefix_hits);
  add(prefix_misses_, &EngineStats::num_prefix_misses);
  add(prefix_evictions_, &EngineStats::num_prefix_evictions);
  for (size_t cause = 0; cause < kNumGroupFailures; ++cause) {
    groups_failed_[cause]->Add(
        static_cast<double>(stats.num_groups_failed[cause] - seen_.num_groups_failed[cause]));
  }
  seen_ = stats;
  const double seconds = stats.step_seconds - window_.step_seconds;
  if (seconds >= kWindowSeconds && limits_.flops_per_second > 0) {
    limit_share_->Set(RooflineSeconds(limits_, stats.step_work - window_.step_work) / seconds);
    window_ = stats;
  }
  kv_used_->Set(static_cast<double>(stats.kv_used_tokens));
  kv_capacity_->Set(static_cast<double>(stats.kv_capacity_tokens));
}

void ServerMetrics::OnGroup(const GroupReport& report) {
  queue_seconds_->Observe(report.started - report.arrived);
  first_token_seconds_->Observe(report.decoding - report.arrived);
  if (report.longest_tokens > 1) inter_token_seconds_->Observe(SecondsBetweenTokens(report));
  spanning_tokens_->Add(static_cast<double>(report.num_spanning_tokens));
}

void ServerMetrics::OnCall(const absl::Status& status, double seconds) {
  Calls(registry_, status.code())->Add();
  call_seconds_->Observe(seconds);
}

void ServerMetrics::OnState(const State& state) {
  owned_->Set(state.owned);
  paused_->Set(state.paused);
  draining_->Set(state.draining);
  ready_->Set(state.ready);
  engine_silent_->Set(state.engine_silent_seconds);
  live_version_->Set(static_cast<double>(state.live_version));
  groups_queued_->Set(static_cast<double>(state.groups.queued));
  groups_running_->Set(static_cast<double>(state.groups.running));
  group_memory_->Set(static_cast<double>(state.group_memory_bytes));
}

void ServerMetrics::OnRejected(const absl::Status& status) {
  registry_
      ->GetCounter("tandem_rejections_total", "Calls refused, by status code.",
                   {{"reason", absl::StatusCodeToString(status.code())}})
      ->Add();
}

void ServerMetrics::OnCommit(const WeightReceiver::CommitReport& report) {
  commits_->Add();
  commit_seconds_->Observe(report.verify_seconds + report.pack_seconds + report.pause_seconds);
  commit_pause_->Set(report.pause_seconds);
  commit_time_->Set(UnixSeconds());
}

void ServerMetrics::OnCommitFailed(const absl::Status& status) {
  CommitFailures(registry_, status.code())->Add();
}

}  // namespace tandem::rollout
