// Observation: the metrics and the health of a process and, after Serve, the port at which both can
// be read. It is made first in a process and destroyed last. Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/observe/health.h"
#include "common/observe/metrics.h"
#include "common/observe/observe_server.h"

namespace tandem {

// ProcessMetrics: the process_... metrics that Prometheus client libraries report, read from /proc
// whenever a page is rendered, and tandem_build_info. Linux only.
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

class Observation {
 public:
  explicit Observation(const std::string& role) : process_(&metrics_, role) {}

  // Listens until this object is destroyed. An empty address does nothing. Errors are those of
  // ObserveServer::Listen.
  absl::Status Serve(const std::string& address);

  int port() const { return server_ == nullptr ? 0 : server_->port(); }
  MetricsRegistry* metrics() { return &metrics_; }
  Health* health() { return &health_; }

 private:
  MetricsRegistry metrics_;
  Health health_;
  ProcessMetrics process_;
  std::unique_ptr<ObserveServer> server_;  // destroyed first, because its threads read the others
};

}  // namespace tandem
