// Metrics of a process: counters, gauges and histograms, rendered in Prometheus text format
// (observe_server.h serves it). prometheus-cpp is not visible to callers. Thread-safe. Counters,
// gauges and histograms live as long as the registry.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace tandem {

class Counter {
 public:
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  void Add(double amount = 1);
  double Value() const;

 private:
  prometheus::Counter* counter_;
};

class Gauge {
 public:
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value);
  double Value() const;

 private:
  prometheus::Gauge* gauge_;
};

class HistogramMetric {
 public:
  HistogramMetric(prometheus::Histogram* histogram, const std::vector<double>& bounds)
      : histogram_(histogram), bounds_(bounds) {}
  void Observe(double value);
  void ObserveMany(double value, int64_t times);  // observes `value` this many times

 private:
  prometheus::Histogram* histogram_;
  std::vector<double> bounds_;
};

using MetricLabels = std::map<std::string, std::string>;

class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The same name and labels give the same object. Names follow Prometheus' rules ("tandem_..."); a
  // bad name is a TANDEM_CHECK.
  Counter* GetCounter(std::string_view name, std::string_view help,
                      const MetricLabels& labels = {});
  Gauge* GetGauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  HistogramMetric* GetHistogram(std::string_view name, std::string_view help,
                                const std::vector<double>& bounds, const MetricLabels& labels = {});

  // Runs `update` before each Render, on its thread, for numbers that are read on demand. It must
  // not block and must not call BeforeRender, Render or Forget. What it captures is kept until
  // Forget.
  void BeforeRender(const void* owner, std::function<void()> update);
  void Forget(const void* owner);  // afterwards, no update of this owner runs

  // All metrics in Prometheus text exposition format.
  std::string Render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
