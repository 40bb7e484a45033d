#include "rollout_server/server_metrics.h"

#include <algorithm>
#include <string>

namespace tandem::rollout {
namespace {

constexpr double kWindowSeconds = 1;

}  // namespace

ServerMetrics::ServerMetrics(MetricsRegistry* registry, const MachineLimits& limits)
    : registry_(registry),
      limits_(limits),
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
                                             {0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30})),
      preemptions_(registry->GetCounter("tandem_preemptions_total",
                                        "sequences that lost their KV for want of room")),
      prefix_hits_(registry->GetCounter("tandem_prefix_hit_blocks_total", "blocks of KV found")),
      prefix_misses_(registry->GetCounter("tandem_prefix_miss_blocks_total",
                                          "blocks of KV looked for and not there")),
      prefix_evictions_(registry->GetCounter("tandem_prefix_evicted_blocks_total",
                                             "findable blocks whose place was taken")),
      step_seconds_(registry->GetCounter("tandem_step_seconds_total", "time in engine steps")),
      step_bytes_(registry->GetCounter("tandem_step_bytes_total",
                                       "bytes that steps had to read at least")),
      step_flops_(registry->GetCounter("tandem_step_flops_total",
                                       "operations that steps had to make at least")),
      limit_share_(registry->GetGauge(
          "tandem_step_limit_share",
          "least possible over measured time of the last second of steps")) {
  registry->GetGauge("tandem_limit_read_bytes_per_second", "memory, measured at the start")
      ->Set(limits.read_bytes_per_second);
  registry->GetGauge("tandem_limit_flops_per_second", "multiply-adds, measured at the start")
      ->Set(std::max(limits.flops_per_second, limits.bf16_flops_per_second));
}

void ServerMetrics::AddSince(Counter* counter, uint64_t now, uint64_t* seen) {
  counter->Add(static_cast<double>(now - *seen));
  *seen = now;
}

void ServerMetrics::AddRoofline(const EngineStats& stats) {
  step_seconds_->Add(stats.step_seconds - seen_.step_seconds);
  step_bytes_->Add(stats.step_bytes - seen_.step_bytes);
  step_flops_->Add(stats.step_flops - seen_.step_flops);
  const double seconds = stats.step_seconds - window_.step_seconds;
  if (seconds < kWindowSeconds || limits_.flops_per_second <= 0) return;
  limit_share_->Set(RooflineSeconds(limits_, stats.step_bytes - window_.step_bytes,
                                    stats.step_flops - window_.step_flops) /
                    seconds);
  window_ = stats;
}

void ServerMetrics::OnStats(const EngineStats& stats, const GroupRegistry::Counts& groups) {
  AddRoofline(stats);
  AddSince(sampled_tokens_, stats.num_tokens_sampled, &seen_.num_tokens_sampled);
  AddSince(prompt_tokens_, stats.num_prompt_tokens_computed, &seen_.num_prompt_tokens_computed);
  AddSince(preemptions_, stats.num_preemptions, &seen_.num_preemptions);
  AddSince(prefix_hits_, stats.num_prefix_hits, &seen_.num_prefix_hits);
  AddSince(prefix_misses_, stats.num_prefix_misses, &seen_.num_prefix_misses);
  AddSince(prefix_evictions_, stats.num_prefix_evictions, &seen_.num_prefix_evictions);
  seen_ = stats;
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
  commit_seconds_->Observe(report.verify_seconds + report.pack_seconds + report.pause_seconds);
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
