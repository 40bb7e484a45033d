// ServerMetrics: the numbers a rollout server shows on /metrics. Thread-safe.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "common/observe/metrics.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/groups/group_call.h"
#include "rollout_server/groups/group_registry.h"
#include "rollout_server/weights/weight_receiver.h"

namespace tandem::rollout {

class ServerMetrics {
 public:
  // `registry` must outlive this object. `limits`: what steps are compared with; zeroes if unknown.
  ServerMetrics(MetricsRegistry* registry, const MachineLimits& limits);

  // From the engine thread only.
  void OnStats(const EngineStats& stats);

  void OnGroup(const GroupReport& report);

  // A GenerateGroup call that has ended: how, and after how long.
  void OnCall(const absl::Status& status, double seconds);

  struct State {
    bool owned = false, paused = false, draining = false, ready = false;
    double engine_silent_seconds = 0;
    int64_t live_version = 0;
    GroupRegistry::Counts groups;
    int64_t group_memory_bytes = 0;
  };
  // Before each page, so that it shows what is true then, however long the engine has been idle.
  void OnState(const State& state);

  void OnRejected(const absl::Status& status);
  void OnCommit(const WeightReceiver::CommitReport& report);
  void OnCommitFailed(const absl::Status& status);

 private:
  void AddSince(Counter* counter, uint64_t now, uint64_t* seen);
  void AddRoofline(const EngineStats& stats);

  MetricsRegistry* const registry_;
  const MachineLimits limits_;
  Counter* const sampled_tokens_;
  Counter* const prompt_tokens_;
  Gauge* const groups_queued_;
  Gauge* const groups_running_;
  Gauge* const kv_used_;
  Gauge* const kv_capacity_;
  Gauge* const live_version_;
  Counter* const commits_;
  Gauge* const commit_pause_;
  HistogramMetric* const commit_seconds_;
  Counter* const preemptions_;
  std::array<Counter*, kNumGroupFailures> groups_failed_ = {};
  Counter* const prefix_hits_;
  Counter* const prefix_misses_;
  Counter* const prefix_evictions_;
  Counter* const step_seconds_;
  Counter* const step_bytes_;
  Counter* const step_flops_;
  Gauge* const limit_share_;
  HistogramMetric* const call_seconds_;
  HistogramMetric* const queue_seconds_;
  HistogramMetric* const first_token_seconds_;
  HistogramMetric* const inter_token_seconds_;
  Counter* const spanning_tokens_;
  Gauge* const group_memory_;
  Gauge* const commit_time_;
  Gauge* const owned_;
  Gauge* const paused_;
  Gauge* const draining_;
  Gauge* const ready_;
  Gauge* const engine_silent_;
  EngineStats seen_;    // engine thread only
  EngineStats window_;  // where the running window of limit_share_ began
};

}  // namespace tandem::rollout
