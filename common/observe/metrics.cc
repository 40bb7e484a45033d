#include "common/observe/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
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
  PrometheusHistogram(prometheus::Histogram* histogram, std::vector<double> bounds)
      : histogram_(histogram), bounds_(std::move(bounds)) {}
  void Observe(double value) override { histogram_->Observe(value); }
  void ObserveMany(double value, int64_t times) override {
    std::vector<double> counts(bounds_.size() + 1, 0.0);
    const auto bucket = std::ranges::lower_bound(bounds_, value) - bounds_.begin();
    counts[static_cast<size_t>(bucket)] = static_cast<double>(times);
    histogram_->ObserveMultiple(counts, value * static_cast<double>(times));
  }

 private:
  prometheus::Histogram* const histogram_;
  const std::vector<double> bounds_;
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

  // A name belongs to a single kind of metric.
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

  mutable Mutex updates_mu;  // held while updates run; never taken while mu is held
  std::vector<std::pair<const void*, std::function<void()>>> updates ABSL_GUARDED_BY(updates_mu);
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
    slot = std::make_unique<PrometheusHistogram>(&family.Add(labels, bounds), bounds);
  }
  return slot.get();
}

void MetricsRegistry::BeforeRender(const void* owner, std::function<void()> update) {
  MutexLock lock(&impl_->updates_mu);
  impl_->updates.emplace_back(owner, std::move(update));
}

void MetricsRegistry::Forget(const void* owner) {
  MutexLock lock(&impl_->updates_mu);
  std::erase_if(impl_->updates, [&](const auto& one) { return one.first == owner; });
}

std::string MetricsRegistry::Render() const {
  {
    MutexLock lock(&impl_->updates_mu);
    for (const auto& [owner, update] : impl_->updates) update();
  }
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

}  // namespace tandem
