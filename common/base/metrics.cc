#include "common/base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <exception>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"

namespace tandem {
namespace {

class PrometheusCounter : public Counter {
 public:
  explicit PrometheusCounter(prometheus::Counter* counter) : counter_(counter) {}
  void Add(double amount) override { counter_->Increment(amount); }
  double Value() const override { return counter_->Value(); }

 private:
  prometheus::Counter* const counter_;
};

class PrometheusGauge : public Gauge {
 public:
  explicit PrometheusGauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value) override { gauge_->Set(value); }
  double Value() const override { return gauge_->Value(); }

 private:
  prometheus::Gauge* const gauge_;
};

class PrometheusHistogram : public HistogramMetric {
 public:
  explicit PrometheusHistogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value) override { histogram_->Observe(value); }

 private:
  prometheus::Histogram* const histogram_;
};

bool IsValidName(std::string_view name, bool colon_allowed) {
  if (name.empty() || absl::ascii_isdigit(static_cast<unsigned char>(name[0]))) return false;
  for (const char c : name) {
    const bool letter = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (!letter && !(colon_allowed && c == ':')) return false;
  }
  return true;
}

bool AreValidLabels(const MetricLabels& labels) {
  for (const auto& [name, value] : labels) {
    if (!IsValidName(name, false) || name.starts_with("__")) return false;
  }
  return true;
}

}  // namespace

struct MetricsRegistry::Impl {
  enum class Kind { kCounter, kGauge, kHistogram };
  using Key = std::pair<std::string, MetricLabels>;

  // A name belongs to one kind of metric.
  void CheckNames(std::string_view name, const MetricLabels& labels, Kind kind) {
    TANDEM_CHECK(IsValidName(name, true));
    TANDEM_CHECK(AreValidLabels(labels));
    const auto [entry, is_new] = kinds.emplace(name, kind);
    TANDEM_CHECK(entry->second == kind);
  }

  Mutex mu;
  std::shared_ptr<prometheus::Registry> registry = std::make_shared<prometheus::Registry>();
  std::map<std::string, Kind> kinds ABSL_GUARDED_BY(mu);
  std::map<Key, std::unique_ptr<Counter>> counters ABSL_GUARDED_BY(mu);
  std::map<Key, std::unique_ptr<Gauge>> gauges ABSL_GUARDED_BY(mu);
  std::map<Key, std::unique_ptr<HistogramMetric>> histograms ABSL_GUARDED_BY(mu);
  std::unique_ptr<prometheus::Exposer> exposer;  // last: its threads read the registry
};

MetricsRegistry::MetricsRegistry() : impl_(std::make_unique<Impl>()) {}
MetricsRegistry::~MetricsRegistry() = default;

Counter* MetricsRegistry::GetCounter(std::string_view name, std::string_view help,
                                     const MetricLabels& labels) {
  MutexLock lock(&impl_->mu);
  impl_->CheckNames(name, labels, Impl::Kind::kCounter);
  std::unique_ptr<Counter>& slot = impl_->counters[{std::string(name), labels}];
  if (slot == nullptr) {
    auto& family = prometheus::BuildCounter()
                       .Name(std::string(name))
                       .Help(std::string(help))
                       .Register(*impl_->registry);
    slot = std::make_unique<PrometheusCounter>(&family.Add(labels));
  }
  return slot.get();
}

Gauge* MetricsRegistry::GetGauge(std::string_view name, std::string_view help,
                                 const MetricLabels& labels) {
  MutexLock lock(&impl_->mu);
  impl_->CheckNames(name, labels, Impl::Kind::kGauge);
  std::unique_ptr<Gauge>& slot = impl_->gauges[{std::string(name), labels}];
  if (slot == nullptr) {
    auto& family = prometheus::BuildGauge()
                       .Name(std::string(name))
                       .Help(std::string(help))
                       .Register(*impl_->registry);
    slot = std::make_unique<PrometheusGauge>(&family.Add(labels));
  }
  return slot.get();
}

HistogramMetric* MetricsRegistry::GetHistogram(std::string_view name, std::string_view help,
                                               const std::vector<double>& bounds,
                                               const MetricLabels& labels) {
  MutexLock lock(&impl_->mu);
  impl_->CheckNames(name, labels, Impl::Kind::kHistogram);
  std::unique_ptr<HistogramMetric>& slot = impl_->histograms[{std::string(name), labels}];
  if (slot == nullptr) {
    auto& family = prometheus::BuildHistogram()
                       .Name(std::string(name))
                       .Help(std::string(help))
                       .Register(*impl_->registry);
    slot = std::make_unique<PrometheusHistogram>(&family.Add(labels, bounds));
  }
  return slot.get();
}

std::string MetricsRegistry::Render() const {
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

absl::StatusOr<int> MetricsRegistry::Serve(const std::string& address) {
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address);
    exposer->RegisterCollectable(impl_->registry);
    const std::vector<int> ports = exposer->GetListeningPorts();
    impl_->exposer = std::move(exposer);
    if (ports.empty()) return absl::UnavailableError(absl::StrCat(address, ": no port was bound"));
    return ports.front();
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("metrics address ", address, " cannot be bound (",
                                               error.what(),
                                               "): is another process on this port?"));
  }
}

}  // namespace tandem
