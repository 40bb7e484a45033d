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
  virtual void ObserveMany(double value, int64_t times) = 0;  // observes `value` this many times
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
