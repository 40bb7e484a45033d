// ServerMetrics: the metrics of a rollout server on /metrics. Each is declared once, with its name
// and help. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/observe/metrics.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/groups/group_call.h"
#include "rollout_server/groups/group_registry.h"
#include "rollout_server/weights/weight_receiver.h"

namespace tandem::rollout {

class ServerMetrics {
 public:
  // `registry` must outlive this object. `limits`: the machine's, for comparison; zeros if unknown.
  ServerMetrics(MetricsRegistry* registry, const MachineLimits& limits);

  // From the engine thread only.
  void OnStats(const EngineStats& stats);

  void OnGroup(const GroupReport& report);

  // A GenerateGroup call ended with `status`, after `seconds`.
  void OnCall(const absl::Status& status, double seconds);

  struct State {
    bool owned = false, paused = false, draining = false, ready = false;
    double engine_silent_seconds = 0;
    int64_t live_version = 0;
    GroupRegistry::Counts groups;
    int64_t group_memory_bytes = 0;
  };
  // Call before each page, so that it shows the current state even if the engine has been idle.
  void OnState(const State& state);

  void OnRejected(const absl::Status& status);
  void OnCommit(const WeightReceiver::CommitReport& report);
  void OnCommitFailed(const absl::Status& status);

 private:
  // Bounds of histograms, in seconds.
  static std::vector<double> CallBounds() {
    return {0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600};
  }

  MetricsRegistry* const registry_;
  const MachineLimits limits_;
  Counter* const sampled_tokens_ =
      registry_->GetCounter("tandem_sampled_tokens_total", "Tokens sampled.");
  Counter* const prompt_tokens_ = registry_->GetCounter(
      "tandem_prompt_tokens_total", "Prompt tokens computed; once for a group.");
  Counter* const given_tokens_ = registry_->GetCounter(
      "tandem_given_tokens_total", "Tokens given to completions between two turns.");
  Gauge* const completions_waiting_ = registry_->GetGauge(
      "tandem_completions_waiting", "Completions that wait between two turns to be continued.");
  Gauge* const groups_queued_ = registry_->GetGauge("tandem_groups_queued", "Groups that wait.");
  Gauge* const groups_running_ =
      registry_->GetGauge("tandem_groups_running", "Groups being sampled.");
  Gauge* const kv_used_ =
      registry_->GetGauge("tandem_kv_used_tokens", "Tokens that groups hold in the KV cache.");
  Gauge* const kv_capacity_ =
      registry_->GetGauge("tandem_kv_capacity_tokens", "Tokens the KV cache has room for.");
  Gauge* const live_version_ =
      registry_->GetGauge("tandem_live_weight_version", "Version of the weights that serve.");
  Counter* const commits_ = registry_->GetCounter("tandem_weight_commits_total", "Weight commits.");
  Gauge* const commit_pause_ = registry_->GetGauge(
      "tandem_weight_commit_pause_seconds", "How long the last commit held back decode steps.");
  HistogramMetric* const commit_seconds_ = registry_->GetHistogram(
      "tandem_weight_commit_seconds", "Verifying, packing and installing a push.",
      {0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30});
  Counter* const preemptions_ = registry_->GetCounter(
      "tandem_preemptions_total", "Sequences that lost their KV for want of room.");
  std::array<Counter*, kNumGroupFailures> groups_failed_ = {};
  Counter* const prefix_hits_ = registry_->GetCounter("tandem_prefix_hit_blocks_total",
                                                      "Blocks of KV found in the prefix index.");
  Counter* const prefix_misses_ = registry_->GetCounter("tandem_prefix_miss_blocks_total",
                                                        "Blocks of KV looked for and not there.");
  Counter* const prefix_evictions_ = registry_->GetCounter(
      "tandem_prefix_evicted_blocks_total", "Findable blocks whose place was taken.");
  Counter* const step_seconds_ =
      registry_->GetCounter("tandem_step_seconds_total", "Time in engine steps.");
  Counter* const step_bytes_ =
      registry_->GetCounter("tandem_step_bytes_total", "Bytes that steps had to read at least.");
  Counter* const step_flops_ = registry_->GetCounter("tandem_step_flops_total",
                                                     "Operations that steps had to make at least.");
  Gauge* const limit_share_ =
      registry_->GetGauge("tandem_step_limit_share",
                          "Least possible over measured time of the last second of "
                          "steps; 1 is the machine's limit.");
  HistogramMetric* const call_seconds_ = registry_->GetHistogram(
      "tandem_request_duration_seconds", "GenerateGroup calls from arrival to end.", CallBounds());
  HistogramMetric* const queue_seconds_ = registry_->GetHistogram(
      "tandem_queue_seconds", "Groups from arrival until the engine took them up.", CallBounds());
  HistogramMetric* const first_token_seconds_ =
      registry_->GetHistogram("tandem_time_to_first_token_seconds",
                              "Groups from arrival to their first token.", CallBounds());
  HistogramMetric* const inter_token_seconds_ = registry_->GetHistogram(
      "tandem_inter_token_seconds", "Mean time between two tokens of a group's longest completion.",
      {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5});
  Counter* const spanning_tokens_ =
      registry_->GetCounter("tandem_tokens_spanning_versions_total",
                            "Tokens of completions that more than one weight version drew.");
  Gauge* const group_memory_ = registry_->GetGauge("tandem_group_memory_bytes",
                                                   "What groups hold beside the KV cache; "
                                                   "server.memory_bytes is the most.");
  Gauge* const commit_time_ =
      registry_->GetGauge("tandem_weight_commit_timestamp_seconds",
                          "When weights were last committed, in seconds since 1970.");
  Gauge* const owned_ = registry_->GetGauge("tandem_owned", "1 while a run owns this server.");
  Gauge* const paused_ = registry_->GetGauge("tandem_paused", "1 while the engine is paused.");
  Gauge* const draining_ = registry_->GetGauge("tandem_draining", "1 from SIGTERM on.");
  Gauge* const ready_ = registry_->GetGauge("tandem_ready", "1 while /readyz says yes.");
  Gauge* const engine_silent_ = registry_->GetGauge(
      "tandem_engine_silent_seconds",
      "How long the engine has not moved although it has work; /livez compares it.");
  EngineStats seen_;    // engine thread only
  EngineStats window_;  // at the beginning of limit_share_'s window
};

}  // namespace tandem::rollout
