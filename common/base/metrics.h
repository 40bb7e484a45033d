// Metrics of a process: counters and gauges, served in Prometheus text form on /metrics.
// prometheus-cpp stays behind this header. Thread-safe; Counter and Gauge live as long as the
// registry.
#ifndef TANDEM_COMMON_BASE_METRICS_H_
#define TANDEM_COMMON_BASE_METRICS_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem {

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Add(double amount = 1) = 0;
  virtual double Value() const = 0;
};

class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
  virtual double Value() const = 0;
};

class HistogramMetric {
 public:
  virtual ~HistogramMetric() = default;
  virtual void Observe(double value) = 0;
};

using MetricLabels = std::map<std::string, std::string>;

class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The same name and labels give the same object. Names follow Prometheus rules ("tandem_..."): a
  // bad name is a TANDEM_CHECK.
  Counter* GetCounter(std::string_view name, std::string_view help,
                      const MetricLabels& labels = {});
  Gauge* GetGauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  HistogramMetric* GetHistogram(std::string_view name, std::string_view help,
                                const std::vector<double>& bounds, const MetricLabels& labels = {});

  // Everything, in Prometheus text exposition format.
  std::string Render() const;

  // Serves Render() at http://ADDRESS/metrics until the registry is destroyed; port 0 picks one.
  // Returns the bound port.
  //   UNAVAILABLE  the address cannot be bound (named)
  absl::StatusOr<int> Serve(const std::string& address);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

#endif  // TANDEM_COMMON_BASE_METRICS_H_
