// ProcessMetrics: the process_... metrics that Prometheus client libraries report, read from /proc
// whenever a page is rendered, and tandem_build_info. Linux only.
#ifndef TANDEM_COMMON_OBSERVE_PROCESS_METRICS_H_
#define TANDEM_COMMON_OBSERVE_PROCESS_METRICS_H_

#include <string>

#include "common/observe/metrics.h"

namespace tandem {

class ProcessMetrics {
 public:
  // `registry` must outlive it. `role`: "trainer", "rollout_server".
  ProcessMetrics(MetricsRegistry* registry, const std::string& role);
  ~ProcessMetrics();
  ProcessMetrics(const ProcessMetrics&) = delete;
  ProcessMetrics& operator=(const ProcessMetrics&) = delete;

 private:
  void Update();

  MetricsRegistry* const registry_;
  Counter* const cpu_seconds_;
  Gauge* const resident_bytes_;
  Gauge* const virtual_bytes_;
  Gauge* const threads_;
  Gauge* const open_files_;
  Gauge* const max_files_;
  Gauge* const start_time_;
};

}  // namespace tandem

#endif  // TANDEM_COMMON_OBSERVE_PROCESS_METRICS_H_
