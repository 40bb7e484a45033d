#include "rollout_server/server_metrics.h"

#include <string>

namespace tandem::rollout {

ServerMetrics::ServerMetrics(MetricsRegistry* registry)
    : registry_(registry),
      sampled_tokens_(registry->GetCounter("tandem_sampled_tokens_total", "tokens sampled")),
      prompt_tokens_(registry->GetCounter("tandem_prompt_tokens_total", "prompt tokens computed")),
      groups_queued_(registry->GetGauge("tandem_groups_queued", "groups that wait")),
      groups_running_(registry->GetGauge("tandem_groups_running", "groups being sampled")),
      kv_used_(registry->GetGauge("tandem_kv_used_tokens", "tokens in the KV cache")),
      kv_capacity_(registry->GetGauge("tandem_kv_capacity_tokens", "room of the KV cache")),
      live_version_(registry->GetGauge("tandem_live_weight_version", "weights that serve")),
      commits_(registry->GetCounter("tandem_weight_commits_total", "weight commits")),
      commit_pause_(registry->GetGauge("tandem_weight_commit_pause_seconds",
                                       "how long the last commit held back decode steps")),
      commit_seconds_(registry->GetHistogram("tandem_weight_commit_seconds",
                                             "verifying, packing and installing a push",
                                             {0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30})) {}

void ServerMetrics::OnStats(const EngineStats& stats, const GroupRegistry::Counts& groups) {
  sampled_tokens_->Add(static_cast<double>(stats.num_tokens_sampled - seen_sampled_));
  prompt_tokens_->Add(static_cast<double>(stats.num_prompt_tokens_computed - seen_prompt_));
  seen_sampled_ = stats.num_tokens_sampled;
  seen_prompt_ = stats.num_prompt_tokens_computed;
  groups_queued_->Set(static_cast<double>(groups.queued));
  groups_running_->Set(static_cast<double>(groups.running));
  kv_used_->Set(static_cast<double>(stats.kv_used_tokens));
  kv_capacity_->Set(static_cast<double>(stats.kv_capacity_tokens));
}

void ServerMetrics::OnRejected(const absl::Status& status) {
  registry_
      ->GetCounter("tandem_rejections_total", "calls refused",
                   {{"reason", absl::StatusCodeToString(status.code())}})
      ->Add();
}

void ServerMetrics::OnCommit(const WeightReceiver::CommitReport& report) {
  commits_->Add();
  commit_seconds_->Observe(report.verify_seconds + report.pause_seconds);
  commit_pause_->Set(report.pause_seconds);
  live_version_->Set(static_cast<double>(report.live.version.value));
}

void ServerMetrics::OnCommitFailed(const absl::Status& status) {
  registry_
      ->GetCounter("tandem_weight_commit_failures_total", "commits refused",
                   {{"reason", absl::StatusCodeToString(status.code())}})
      ->Add();
}

}  // namespace tandem::rollout
