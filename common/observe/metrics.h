// Metrics of a process: counters, gauges and histograms, rendered in Prometheus text form
// (common/observe serves it). prometheus-cpp stays behind this header. Thread-safe; Counter and
// Gauge live as long as the registry.
#ifndef TANDEM_COMMON_OBSERVE_METRICS_H_
#define TANDEM_COMMON_OBSERVE_METRICS_H_

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
  virtual void ObserveMany(double value, int64_t times) = 0;  // the same value, so many times
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

  // Runs before each Render, on its thread: for numbers that are read and not counted. Must not
  // block, and not call BeforeRender, Render or Forget. Keeps what is captured until Forget.
  void BeforeRender(const void* owner, std::function<void()> update);
  void Forget(const void* owner);  // afterwards none of the owner's runs

  // Everything, in Prometheus text exposition format.
  std::string Render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem

#endif  // TANDEM_COMMON_OBSERVE_METRICS_H_
