// ServerMetrics: the numbers a rollout server shows on /metrics. Thread-safe.
#ifndef TANDEM_ROLLOUT_SERVER_SERVER_METRICS_H_
#define TANDEM_ROLLOUT_SERVER_SERVER_METRICS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/metrics.h"
#include "rollout_server/engine/engine.h"
#include "rollout_server/group_registry.h"
#include "rollout_server/weight_receiver.h"

namespace tandem::rollout {

class ServerMetrics {
 public:
  // `registry` must outlive this object.
  explicit ServerMetrics(MetricsRegistry* registry);

  // From the engine thread only.
  void OnStats(const EngineStats& stats, const GroupRegistry::Counts& groups);

  void OnRejected(const absl::Status& status);
  void OnCommit(const WeightReceiver::CommitReport& report);
  void OnCommitFailed(const absl::Status& status);

 private:
  MetricsRegistry* const registry_;
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
  uint64_t seen_sampled_ = 0, seen_prompt_ = 0;  // engine thread only
};

}  // namespace tandem::rollout

#endif  // TANDEM_ROLLOUT_SERVER_SERVER_METRICS_H_
